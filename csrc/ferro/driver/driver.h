// Everything the allocator asks of one GPU, and nothing else: the door.
//
// Contract of every function:
//  - it may be called from any thread, with any current context and while captures run: it makes
//    the device's primary context current and relaxes the thread's capture mode for its duration;
//  - sizes are positive multiples of `granularity()`;
//  - running out of device memory is a value; any other refusal throws `DriverError` and has
//    changed nothing; functions marked noexcept report failure as a value;
//  - nothing calls back into the allocator, so holding its locks is safe.
// The primary context is created by the first call that needs it, so an unused device stays
// untouched. Thread-safe.
//
// Context and capture mode are changed and restored around every call, or once around many, for
// which there is `Driver::Session`.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/calls.h"
#include "ferro/driver/cuda_api.h"
#include "ferro/driver/types.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferro {

// What cuMemImportFromShareableHandle can be given.
enum class ForeignKind { kDescriptor, kFabric };

class Driver {
 public:
  class Session;
  class SessionBreak;

  Driver(const CudaApi& api, DeviceId device) : api_(api), device_(device) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  DeviceId device() const { return device_; }

  // Memory.
  std::size_t granularity();
  // Does not create a context.
  std::size_t total_memory() const;
  MemoryInfo memory_info();
  // Reserves addresses without memory behind them; none when the address space is exhausted. From
  // `wish` on when they are free, else anywhere.
  std::optional<DevicePtr> reserve(std::size_t bytes, std::size_t alignment,
                                   DevicePtr wish = kNull);
  bool unreserve(DevicePtr base, std::size_t bytes) noexcept;
  // Creates one handle of physical memory; none when the device is full. It can be exported, also
  // over a fabric, and reached by network cards, where the device allows that.
  std::optional<PageHandle> create(std::size_t bytes);
  bool release(PageHandle handle) noexcept;
  Status map(DevicePtr at, std::size_t bytes, PageHandle handle);
  // Gives this device and its peers read and write access to mapped pages.
  Status set_access(DevicePtr at, std::size_t bytes);
  // From now on `set_access` means this device too. What is mapped already needs `grant`.
  // False: it was so already.
  bool add_peer(DeviceId peer);
  void remove_peer(DeviceId peer);
  bool has_peers();
  // Gives one device access to mapped pages, beside those that have it.
  void grant(DevicePtr at, std::size_t bytes, DeviceId to);
  // Does the device have pages, addresses and mappings at all?
  bool has_virtual_memory() const;
  // Removes the mappings of whole pages. False: the driver refused and they are as before.
  bool unmap(DevicePtr at, std::size_t bytes) noexcept;

  // Sharing between processes.
  // Whether new pages can be exported as descriptors; settled by the first page.
  bool exports() { return (handle_traits() & kDescriptor) != 0; }
  // A file descriptor of the page, which the caller closes; it keeps the memory, as a mapping does.
  int export_page(PageHandle handle);
  // A page of another process: `shared` holds a descriptor (int), which stays the caller's, or a
  // CUmemFabricHandle.
  PageHandle import_page(ForeignKind kind, const void* shared);

  // Ordering. Events carry no time. An event belongs to the context that it was created in, and can
  // be recorded on streams of that context only; anybody may query it or wait for it.
  // That of a stream, which may be of another device.
  ContextId context_of(StreamId stream);
  EventId create_event() { return create_event(own_context()); }
  EventId create_event(ContextId context);
  ContextId own_context() { return to_id(context()); }
  // False: the stream captures, and the event may belong to the graph, or the stream is of another
  // context than the event, which `*other` is then; the event can be recorded again, and nothing else.
  // Disturbs no capture, but for those that a legacy stream implies.
  [[nodiscard]] bool record(EventId event, StreamId stream, ContextId* other = nullptr);
  // Records the event behind all work that any stream of this device's context was given so far. The
  // event belongs to that context.
  // False: a stream of the context captures. The driver invalidates every capture of the context
  // then, in any mode and of any thread, so the caller must know that none runs. The event is as it
  // was. Throws DriverError otherwise, also where `has_context_points()` is false.
  [[nodiscard]] bool record_context(EventId event);
  // Does the driver have cuCtxRecordEvent (since CUDA 12.5)?
  bool has_context_points() const { return api_.ctx_record_event != nullptr; }
  // Has all work before the event's last record finished?
  bool is_complete(EventId event);
  // The host waits.
  void wait(EventId event);
  // What the stream is given from now on comes behind the event's last record; the host does not
  // wait. False: the stream captures, where an event from outside cannot be waited for.
  [[nodiscard]] bool stream_wait(EventId event, StreamId stream);
  // Adds to a capture: the next work of `stream` comes behind the work of `other` so far. Both are in
  // that capture. `event` can be recorded again afterwards.
  void join_in_capture(EventId event, StreamId other, StreamId stream);
  // Does the stream capture, or any blocking stream of the device, if it is the legacy stream?
  // Disturbs no capture.
  bool captures(StreamId stream);
  // The host waits for all work on the device. Invalidates every capture that runs on it.
  void wait_for_device();
  CaptureInfo capture_info(StreamId stream);
  CaptureFrontier capture_frontier(StreamId stream);
  // The number of nodes in the graph that the stream is capturing into; 0 if it is not capturing.
  std::size_t captured_nodes(StreamId stream);
  // The nodes that a node of a graph comes directly after.
  std::vector<GraphNodeId> nodes_before(GraphNodeId node);
  // What may be addresses among all that the nodes of the stream's capture were given so far, also
  // those of child graphs: each aligned word of the arguments of kernels, and where copies and fills
  // begin. Ascending, each once. Without the bodies of conditional nodes, which no driver tells; and
  // without kernels where the driver does not say how large their arguments are.
  std::vector<DevicePtr> captured_words(StreamId stream);

  // Writes the lowest 1, 2, 4 or 8 bytes of `bits`, in the order of the stream; the host does not
  // wait and keeps nothing for it.
  void write(DevicePtr at, std::uint64_t bits, std::size_t bytes, StreamId stream);

  // This device's primary context if this object has used it, else null.
  CUcontext context_if_created() const { return context_.load(std::memory_order_acquire); }

  // Since construction.
  DriverCalls calls() const;

 private:
  class CallScope;

  CUcontext context();
  CUmemAllocationProp page_properties() const;
  // What a handle can do beside carrying memory.
  enum HandleTrait : unsigned { kDescriptor = 1, kFabric = 2, kRdma = 4 };
  // As the device promises; once a handle was created, as it keeps. A device without a channel to
  // a fabric promises one all the same. It is not tried there: compute-sanitizer would report that.
  unsigned handle_traits();
  bool promises(CUdevice_attribute attribute);
  CUresult create_handle(PageHandle* out, std::size_t bytes, unsigned traits);
  // Containers forbid descriptors that the device could make, and a channel to a fabric need not
  // work: what the device keeps is found out once, by as many tries as it takes.
  CUresult create_first(PageHandle* out, std::size_t bytes, unsigned promised);
  static ContextId to_id(CUcontext context) {
    return ContextId{reinterpret_cast<std::uint64_t>(context)};
  }
  void count(DriverCall kind) {
    calls_[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  }
  std::string error_name(CUresult result) const;
  [[noreturn]] void refuse(const char* call, CUresult result, std::size_t bytes = 0) const;
  void expect(CUresult result, const char* call, std::size_t bytes = 0) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      refuse(call, result, bytes);
    }
  }
  CUgraph captured_graph(StreamId stream) const;
  void add_words(CUgraph graph, std::vector<DevicePtr>* words) const;
  void add_kernel_words(CUgraphNode kernel, std::vector<DevicePtr>* words) const;
  Status expect_memory(CUresult result, const char* call, std::size_t bytes) const;

  const CudaApi& api_;
  const DeviceId device_;
  Mutex context_mutex_;
  std::atomic<CUcontext> context_{nullptr};
  enum class TraitsState : std::uint8_t { kUnknown, kPromised, kSettled };
  std::atomic<TraitsState> traits_state_{TraitsState::kUnknown};
  std::atomic<unsigned> traits_{0};
  Mutex peers_mutex_;
  std::vector<DeviceId> peers_ FERRO_GUARDED_BY(peers_mutex_);
  std::array<std::atomic<std::uint64_t>, kDriverCallKinds> calls_{};
};

// One change of context and capture mode for all calls of this driver by this thread while the
// object lives, rather than one for each: a request that needs pages makes some twenty. The thread
// may use other drivers meanwhile. To code of others it is as if it had the device's context
// current and a relaxed capture mode; a callback into a program goes into a `SessionBreak`.
// May be nested. It is nothing as long as the device is unused, which it does not change by itself.
// Throws DriverError when the context is refused.
class Driver::Session {
 public:
  explicit Session(Driver& driver) : Session(driver, driver.context_if_created()) {}
  // In a context that may be of another device than the driver's; null: nothing.
  Session(Driver& driver, CUcontext context);
  ~Session() {
    if (context_ != nullptr) {
      leave();
      current_ = outer_;
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  friend class Driver::CallScope;
  friend class Driver::SessionBreak;

  CUresult enter() noexcept;
  void leave() noexcept;

  // Of this thread, innermost; null outside of all.
  static constinit thread_local Session* current_;

  const CudaApi& api_;
  const CUcontext context_;
  Session* const outer_;
  CUcontext previous_ = nullptr;
  bool switched_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Gives the thread back the context and capture mode that it had before its sessions, if it is in
// any, while the object lives. What begins meanwhile is as if it were in none.
class Driver::SessionBreak {
 public:
  SessionBreak();
  ~SessionBreak();
  SessionBreak(const SessionBreak&) = delete;
  SessionBreak& operator=(const SessionBreak&) = delete;

 private:
  static void resume(Session* session);

  Session* const innermost_;
};

}  // namespace ferro
