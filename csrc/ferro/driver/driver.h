// The allocator's only access to one GPU.
//
// Contract of every function:
//  - it may be called from any thread, with any current context and while captures run: it makes
//    the device's primary context current and relaxes the thread's capture mode for its duration;
//  - sizes are positive multiples of `granularity()`;
//  - running out of device memory is a return value; any other refusal throws `DriverError` and
//    changes nothing; functions marked noexcept return failure as a value;
//  - it never calls back into the allocator, so the caller may hold the allocator's locks.
// The first call that needs the primary context creates it; an unused device has none. Thread-safe.
//
// A call changes and restores context and capture mode; a `Driver::Session` does it once for many.
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

// The kinds of handles that `Driver::import_page` accepts.
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
  // Reserves addresses without memory: at `wish` if they are free there, else anywhere. None when
  // the address space is exhausted.
  std::optional<DevicePtr> reserve(std::size_t bytes, std::size_t alignment,
                                   DevicePtr wish = kNull);
  bool unreserve(DevicePtr base, std::size_t bytes) noexcept;
  // Creates one handle of physical memory; none when the device is full. Where the device allows
  // it, the handle can be exported, also over a fabric, and network cards can access it.
  std::optional<PageHandle> create(std::size_t bytes);
  bool release(PageHandle handle) noexcept;
  Status map(DevicePtr at, std::size_t bytes, PageHandle handle);
  // Gives this device and its peers read and write access to mapped pages.
  Status set_access(DevicePtr at, std::size_t bytes);
  // Later calls of `set_access` include the peer; pages mapped before need `grant`. False if the
  // peer was added before.
  bool add_peer(DeviceId peer);
  void remove_peer(DeviceId peer);
  std::vector<DeviceId> peers();
  // Gives one more device access to the pages of one mapping.
  void grant(DevicePtr at, std::size_t bytes, DeviceId to);
  // The same. False if no mapping has exactly these addresses.
  bool try_grant(DevicePtr at, std::size_t bytes, DeviceId to);
  // Whether the device supports virtual memory management.
  bool has_virtual_memory() const;
  // Removes the mappings of whole pages. False if the driver refused; the mappings then stay.
  bool unmap(DevicePtr at, std::size_t bytes) noexcept;

  // Sharing between processes.
  // Whether new pages can be exported as descriptors; the first page settles the answer.
  bool exports() { return (handle_traits() & kDescriptor) != 0; }
  // Returns a file descriptor of the page, which the caller closes. The open descriptor keeps the
  // memory alive, as a mapping does.
  int export_page(PageHandle handle);
  // Imports a page of another process. `shared` points to a descriptor (int), which the caller
  // keeps, or to a CUmemFabricHandle.
  PageHandle import_page(ForeignKind kind, const void* shared);

  // Copies between device and host, on a stream that this object owns and the program does not know.
  // Page-locks host memory, so that copies run at the speed of the bus. False: the system locks no
  // more memory. A copy must not cross the border of a locked range.
  [[nodiscard]] bool lock_host_memory(void* begin, std::size_t bytes);
  // Does not wait for copies.
  void unlock_host_memory(void* begin) noexcept;
  // These begin a copy, which runs after the copies before it.
  void copy_to_host(void* to, DevicePtr from, std::size_t bytes);
  void copy_to_device(DevicePtr to, const void* from, std::size_t bytes);
  // The event comes after the copies so far.
  void record_copies(EventId event);
  // The host waits for all copies.
  void wait_for_copies();

  // Ordering. Events carry no time. An event belongs to the context in which it was created. Only
  // streams of that context can record it; any context may query it or wait for it. A function with
  // a context is for that one, which may be another device's.
  // The context of a stream, which may belong to another device.
  ContextId context_of(StreamId stream);
  EventId create_event() { return create_event(own_context()); }
  EventId create_event(ContextId context);
  ContextId own_context() { return to_id(context()); }
  // The primary context of any device, created if the device has none. It is never released.
  ContextId primary_context(DeviceId device);
  // Whether any device has a primary context. Without one it has received no work.
  bool has_primary_context(DeviceId device) const;
  // All other devices that the process sees.
  std::vector<DeviceId> other_devices() const;
  // Records the event on the stream. False if the stream captures, because the event may then be
  // part of the graph, or if the stream belongs to another context than the event, which `*other`
  // then receives. After false, the event can only be recorded again. Disturbs no capture that
  // began before.
  [[nodiscard]] bool record(EventId event, StreamId stream, ContextId* other = nullptr);
  // Records the event after all work that the streams of its context have received so far.
  // False, with the event unchanged, if a stream of the context captures. The driver then
  // invalidates every capture of the context, in any mode and on any thread, so the caller must
  // know that none runs. Throws DriverError otherwise, also without `has_context_points()`.
  [[nodiscard]] bool record_context(EventId event, ContextId context);
  // Whether the driver has cuCtxRecordEvent (since CUDA 12.5).
  bool has_context_points() const { return api_.ctx_record_event != nullptr; }
  // Whether all work before the event's last record has finished.
  bool is_complete(EventId event);
  // The host waits for the event.
  void wait(EventId event);
  // Later work of the stream waits for the event's last record; the host does not. False if the
  // stream captures, because a capture cannot wait for an event from outside it.
  [[nodiscard]] bool stream_wait(EventId event, StreamId stream);
  // Orders the next work of `stream` after the work of `other` so far. Both streams are in the same
  // capture. `event` can be recorded again afterwards.
  void join_in_capture(EventId event, StreamId other, StreamId stream);
  // Whether the stream captures; for the legacy stream, whether any blocking stream of the context
  // does. Disturbs no capture.
  bool captures(StreamId stream) { return captures(stream, own_context()); }
  bool captures(StreamId stream, ContextId context);
  // The host waits for all work that the streams of the context have received. Captures survive: it
  // frees pinned host memory, which waits too but, unlike cuCtxSynchronize, is allowed meanwhile.
  void wait_for_device(ContextId context);
  CaptureInfo capture_info(StreamId stream);
  CaptureFrontier capture_frontier(StreamId stream);
  // The number of nodes in the graph that the stream is capturing into; 0 if it is not capturing.
  std::size_t captured_nodes(StreamId stream);
  // The direct dependencies of a graph node.
  std::vector<GraphNodeId> nodes_before(GraphNodeId node);
  // Possible addresses in the parameters of all nodes of the stream's capture so far, including
  // child graphs: each aligned word of kernel arguments, and the start addresses of copies and
  // fills. Ascending, without duplicates. Excludes the bodies of conditional nodes, which the
  // driver does not reveal, and kernels if the driver does not report the size of their arguments.
  std::vector<DevicePtr> captured_words(StreamId stream);

  // Writes the lowest 1, 2, 4 or 8 bytes of `bits` in the order of the stream; the host does not
  // wait and need not keep the value.
  void write(DevicePtr at, std::uint64_t bits, std::size_t bytes, StreamId stream);

  // This device's primary context if this object has used it, else null.
  CUcontext context_if_created() const { return context_.load(std::memory_order_acquire); }

  // The calls since construction.
  DriverCalls calls() const;

 private:
  class CallScope;

  CUcontext context();
  CUmemAllocationProp page_properties() const;
  // Optional capabilities of a handle.
  enum HandleTrait : unsigned { kDescriptor = 1, kFabric = 2, kRdma = 4 };
  // The traits that the device promises; after the first handle, those that work. A device promises
  // fabric handles even without a channel to a fabric. They are not tried then, because
  // compute-sanitizer would report the failure.
  unsigned handle_traits();
  bool has_attribute(CUdevice_attribute attribute) const;
  CUresult create_handle(PageHandle* out, std::size_t bytes, unsigned traits);
  // Creates the first handle with as many of the promised traits as work, and settles the traits: a
  // container may forbid descriptors, and a channel to a fabric may fail.
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
  CUstream copy_stream();
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
  Mutex copy_mutex_;
  CUstream copy_stream_ FERRO_GUARDED_BY(copy_mutex_) = nullptr;  // null before the first copy
  Mutex peers_mutex_;
  std::vector<DeviceId> peers_ FERRO_GUARDED_BY(peers_mutex_);
  std::array<std::atomic<std::uint64_t>, kDriverCallKinds> calls_{};
};

// While it lives, context and capture mode are changed once for all calls of this thread to this
// driver, not for each: a request that needs pages makes about twenty. The thread may use other
// drivers meanwhile. Foreign code would run with the device's context current and a relaxed capture
// mode, so a callback into the program runs in a `SessionBreak`. Sessions nest. On an unused device
// a session has no effect. Throws DriverError if the driver refuses the context.
class Driver::Session {
 public:
  explicit Session(Driver& driver) : Session(driver, driver.context_if_created()) {}
  // The context may belong to another device than the driver's; null has no effect.
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

  // The innermost session of this thread; null outside all sessions.
  static constinit thread_local Session* current_;

  const CudaApi& api_;
  const CUcontext context_;
  Session* const outer_;
  CUcontext previous_ = nullptr;
  bool switched_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// While it lives, the thread has the context and capture mode from before its sessions, if any.
// Sessions that begin meanwhile behave as if the thread were in none.
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
