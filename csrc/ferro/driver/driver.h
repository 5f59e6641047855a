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
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/cuda_api.h"
#include "ferro/driver/types.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferro {

// Calls by kind since construction, for statistics and tests.
struct DriverCalls {
  std::uint64_t reserve = 0, unreserve = 0, create = 0, release = 0, map = 0, set_access = 0,
                unmap = 0, event_record = 0, event_query = 0, event_wait = 0, stream_wait = 0,
                exported = 0, imported = 0;
};

// What cuMemImportFromShareableHandle can be given.
enum class ForeignKind { kDescriptor, kFabric };

class Driver {
 public:
  Driver(const CudaApi& api, DeviceId device) : api_(api), device_(device) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  DeviceId device() const { return device_; }

  // Memory.
  std::size_t granularity();
  // Does not create a context.
  std::size_t total_memory() const;
  MemoryInfo memory_info();
  // Reserves addresses without memory behind them; none when the address space is exhausted.
  std::optional<DevicePtr> reserve(std::size_t bytes, std::size_t alignment);
  bool unreserve(DevicePtr base, std::size_t bytes) noexcept;
  // Creates one physical page; none when the device is full. It can be exported where the device
  // allows that.
  std::optional<PageHandle> create(std::size_t bytes);
  bool release(PageHandle handle) noexcept;
  Status map(DevicePtr at, std::size_t bytes, PageHandle handle);
  // Gives this device and its peers read and write access to mapped pages.
  Status set_access(DevicePtr at, std::size_t bytes);
  // From now on `set_access` means this device too. What is mapped already needs `grant`.
  void add_peer(DeviceId peer);
  void remove_peer(DeviceId peer);
  // Gives one device access to mapped pages, beside those that have it.
  void grant(DevicePtr at, std::size_t bytes, DeviceId to);
  // Memory with addresses of its own, for devices and libraries without the calls above; kNull when
  // the device is full. Freeing waits for the device; false: the driver refused.
  DevicePtr allocate(std::size_t bytes);
  bool free(DevicePtr base) noexcept;
  // Does the device have pages, addresses and mappings at all?
  bool has_virtual_memory() const;
  // Removes the mappings of whole pages. False: the driver refused and they are as before.
  bool unmap(DevicePtr at, std::size_t bytes) noexcept;

  // Sharing between processes.
  // Whether new pages can be exported; settled by the first page.
  bool exports();
  // A file descriptor of the page, which the caller closes; it keeps the memory, as a mapping does.
  int export_page(PageHandle handle);
  // A page of another process: `shared` holds a descriptor (int), which stays the caller's, or a
  // CUmemFabricHandle.
  PageHandle import_page(ForeignKind kind, const void* shared);
  // Copies behind all work of the legacy default stream; the host does not wait.
  void copy(DevicePtr to, DevicePtr from, std::size_t bytes);

  // Ordering. Events carry no time.
  EventId create_event();
  void destroy_event(EventId event) noexcept;
  // Behind the work of a stream of another device the host waits; the event is then as it was.
  // False: the stream has begun to capture, and the event may belong to the graph; it can be
  // recorded again, and nothing else.
  [[nodiscard]] bool record(EventId event, StreamId stream);
  // Has all work before the event's last record finished?
  bool is_complete(EventId event);
  // The host waits.
  void wait(EventId event);
  // What the stream is given from now on comes behind the event's last record; the host does not
  // wait. False: the stream captures, where an event from outside cannot be waited for.
  [[nodiscard]] bool order_behind(EventId event, StreamId stream);
  // Has all work of the stream finished? Not while it captures.
  bool is_idle(StreamId stream);
  // The host waits for all work on the device. Invalidates every capture that runs on it.
  void wait_for_device();
  CaptureInfo capture_info(StreamId stream);
  CaptureFrontier capture_frontier(StreamId stream);
  // The nodes that a node of a graph comes directly after.
  std::vector<GraphNodeId> nodes_before(GraphNodeId node);

  // Captures and graphs. A capture ends in the thread that began it, unless it is relaxed.
  void begin_capture(StreamId stream, CaptureMode mode);
  // Ends the stream's capture and makes it executable. Also when it throws, because the capture was
  // invalidated or a stream that joined it is still away, the stream captures no longer.
  GraphExecId end_capture(StreamId stream);
  void launch(GraphExecId graph, StreamId stream);
  // Prepares the first launch on the device.
  void upload(GraphExecId graph, StreamId stream);
  void destroy(GraphExecId graph) noexcept;
  // Writes the lowest 1, 2, 4 or 8 bytes of `bits`, in the order of the stream; the host does not
  // wait and keeps nothing for it.
  void write(DevicePtr at, std::uint64_t bits, std::size_t bytes, StreamId stream);

  // The context current in this thread, or null; the cheapest question a driver answers (8 ns).
  CUcontext current_context() const;
  // This device's primary context if this object has used it, else null.
  CUcontext context_if_created() const { return context_.load(std::memory_order_acquire); }

  DriverCalls calls() const;

 private:
  class CallScope;
  enum CallKind {
    kReserve,
    kUnreserve,
    kCreate,
    kRelease,
    kMap,
    kSetAccess,
    kUnmap,
    kEventRecord,
    kEventQuery,
    kEventWait,
    kStreamWait,
    kExport,
    kImport,
    kCallKinds
  };

  CUcontext context();
  CUmemAllocationProp page_properties() const;
  CUresult create_page(PageHandle* out, std::size_t bytes, bool exportable);
  void count(CallKind kind) { calls_[kind].fetch_add(1, std::memory_order_relaxed); }
  std::string error_name(CUresult result) const;
  [[noreturn]] void refuse(const char* call, CUresult result, std::size_t bytes = 0) const;
  void expect(CUresult result, const char* call, std::size_t bytes = 0) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      refuse(call, result, bytes);
    }
  }
  bool is_done(CUresult answer, const char* function) const;
  Status expect_memory(CUresult result, const char* call, std::size_t bytes) const;

  const CudaApi& api_;
  const DeviceId device_;
  Mutex context_mutex_;
  std::atomic<CUcontext> context_{nullptr};
  // The device says whether it can; the first page shows whether it may.
  enum class Exports : std::uint8_t { kUnknown, kPossible, kYes, kNo };
  std::atomic<Exports> exports_{Exports::kUnknown};
  Mutex peers_mutex_;
  std::vector<DeviceId> peers_ FERRO_GUARDED_BY(peers_mutex_);
  std::array<std::atomic<std::uint64_t>, kCallKinds> calls_{};
};

}  // namespace ferro
