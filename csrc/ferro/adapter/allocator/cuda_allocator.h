// PyTorch's CUDA allocator interface on top of the core: a thin translator.
//
// One object per process, created by the first install and never destroyed, because tensors,
// storages and other libraries keep pointers to it until the process ends. Thread-safe. It enters
// the core without a lock of its own. Callers may hold the GIL; it never takes it.
//
// It serves new requests after `start_serving`. After `stop_serving` it stays installed in PyTorch,
// but sends new requests to the previous allocator. Graphs, pools and tensors of both stay valid,
// and each call goes to the allocator that owns its object.
//
// In a child of fork(), the driver does not work if the parent used it, and other threads of the
// parent may have held any lock. So the child constructs its copy again (`renew_in_child`), without
// devices and with free locks. Frees and releases of inherited objects do nothing there, statistics
// are empty, and other calls are refused in PyTorch's words.
//
// Errors: out of memory is c10::OutOfMemoryError; a refusal by the driver is c10::AcceleratorError
// with the call's name at the end; a misuse is a c10::Error in PyTorch's words.
#pragma once

#include "ferro/adapter/allocator/failure_log.h"
#include "ferro/adapter/allocator/host_pools.h"
#include "ferro/adapter/allocator/known_streams.h"
#include "ferro/adapter/allocator/rejections.h"
#include "ferro/adapter/allocator/settings.h"
#include "ferro/adapter/allocator/status_text.h"
#include "ferro/adapter/fallback/previous_allocator.h"
#include "ferro/adapter/fallback/uncached_allocations.h"
#include "ferro/adapter/history/history.h"
#include "ferro/adapter/ipc/descriptor_server.h"
#include "ferro/adapter/ipc/ipc_handle.h"
#include "ferro/adapter/ipc/ipc_receiver.h"
#include "ferro/adapter/ipc/status_server.h"
#include "ferro/adapter/torch/expandable_setting.h"
#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/core/blocks/address_index.h"
#include "ferro/core/device/device_memory.h"
#include "ferro/graph/graph_memory.h"
#include "ferro/graph/pool_router.h"
#include "ferro/graph/watched_blocks.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

namespace ferro {

class CudaAllocator final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  CudaAllocator(const CudaApi& api, const Settings& config, CUDAAllocator& previous)
      : CudaAllocator(api, config, previous, In::kOwnProcess) {}

  // c10::Allocator
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // c10::DeviceAllocator
  bool initialized() override;
  void emptyCache(c10::MempoolId_t id) override;
  using CUDAAllocator::recordStream;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;

  // CUDAAllocator: allocation and life cycle
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  // Allocates at exactly that address, which must be free memory of the pool and stream that would
  // serve an allocation now. Throws c10::Error otherwise.
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) FERRO_OVERRIDE_SINCE_13;
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override { return enabled_.load(std::memory_order_relaxed); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) override;
  void* getBaseAllocation(void* ptr, std::size_t* size) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  std::string name() override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool peers) override;

  // CUDAAllocator: pools and graphs
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t id) override;
  void markCaptureBegin(c10::DeviceIndex device) FERRO_OVERRIDE_SINCE_13;
  void markCaptureEnd(c10::DeviceIndex device) FERRO_OVERRIDE_SINCE_13;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t id) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t id) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                          std::shared_ptr<CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t id,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      c10::DeviceIndex device, c10::MempoolId_t id) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override;

  // CUDAAllocator: observation and sharing
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t id,
                                                         bool include_traces) override;
  bool isHistoryEnabled() override { return history_enabled_.load(std::memory_order_relaxed); }
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                     std::size_t max_entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override;
  void pushCompileContext(std::string& name) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  bool supportsUserMetadata() FERRO_OVERRIDE_SINCE_14 { return true; }
  void annotateMemory(const void* ptr, const std::string& metadata) FERRO_OVERRIDE_SINCE_14;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr)
      FERRO_OVERRIDE_SINCE_12;
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
  void attachOomRejectionObserver(OomRejectionObserver observer) FERRO_OVERRIDE_SINCE_12;
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override;

  // Switching (install.h), not while a capture runs. Both may be called repeatedly.
  void start_serving() FERRO_EXCLUDES(switch_mutex_);
  // Only after `init`.
  void stop_serving() FERRO_EXCLUDES(switch_mutex_);
  bool serves() const { return serving() == Serving::kOurs; }
  // Whether allocations of that device go to a pool, for a capture or another reason.
  bool is_diverting(c10::DeviceIndex device) const;
  // Whether graphs or MemPools hold this pool in either allocator.
  bool holds_pool(const PoolId& id) const;
  // Called after a hold of a pool is released, and after the registry destroyed the pool. When
  // nothing holds it, the data kept beside its memory is dropped (graph/graph_memory.h,
  // graph/pool_registry.h, host_pools.h).
  void on_release(const PoolId& id);
  // Returns the free memory of an unheld pool to the driver if no wait is needed for that: the
  // device is idle, and neither a capture nor a climb runs. Throws nothing.
  void empty_idle_pool(const PoolId& id);

  // Exclusive groups (graph/graph_memory.h), on all devices. Empty, or the reason of a refusal:
  // "member" of a group, "no member", "capturing", "busy", "asleep", "no memory", "native" for a pool
  // of PyTorch's allocator.
  std::string join_scratch(std::uint64_t group, const PoolId& pool);
  std::string leave_scratch(const PoolId& pool);  // on the devices where it is a member
  // On any device; also after a failed `join_scratch` that could not be undone everywhere.
  bool is_in_group(std::uint64_t group, const PoolId& pool) const;
  // On all devices: later captures into the pool borrow no handles.
  void expect_checkpoints(const PoolId& pool);
  // Whether checkpoints of the pool were taken or are expected.
  bool is_of_tree(const PoolId& pool) const;
  GroupBytes scratch_bytes(std::uint64_t group) const;
  GroupBytes scratch_bytes_if_joined(std::span<const PoolId> pools) const;
  // The device on which the pool is held; none if there is none or several.
  std::optional<c10::DeviceIndex> device_of(const PoolId& pool) const;

  // Sizes of pools and graphs (cuda_allocator_sizes.cpp).
  struct PrivatePool {
    PoolId id;
    std::string name;  // given by the user; may be empty
    PoolSizes sizes;
  };
  // The private pools with memory on this device.
  std::vector<PrivatePool> private_pools(c10::DeviceIndex device) const;
  // None for an unknown pool.
  std::optional<GraphSizes> graph_sizes(c10::DeviceIndex device, const PoolId& pool,
                                        std::uint64_t capture) const;
  // Called when the capture's graph is destroyed.
  void forget_capture(c10::DeviceIndex device, const PoolId& pool, std::uint64_t capture) const;

  // For the debug mode of graphs. While it is on, frees report watched blocks.
  WatchedBlocks& watched_blocks() { return watched_blocks_; }
  void watch_blocks(bool on) FERRO_EXCLUDES(init_mutex_);
  using VisitBlock = std::function<void(const BlockView& block, const PoolId& pool)>;
  // Visits all live blocks of all devices. Calls `visit` under the lock of a heap.
  void visit_live(const VisitBlock& visit) const;
  // The addresses that a capture received from its pool.
  AddressRanges addresses_of_capture(c10::DeviceIndex device, const PoolId& pool,
                                     std::uint64_t capture, GraphMemory::Places places) const;
  // The number of captures that run, on all devices.
  int captures() const;
  bool has_captures() const { return captures() != 0; }

  // Called in a child of fork(), by its only thread. Constructs the object again at its address and
  // abandons what it had. No-op if the parent had not used CUDA: the child may use it then.
  void renew_in_child();
  bool is_in_forked_child() const { return in_ == In::kForkedChild; }

  // Called at the end of the process, before static destructors run: `top` gets no more reports.
  void stop_status() { status_server_.stop(); }

  // For ferro_alloc's own tools.
  Settings config() FERRO_EXCLUDES(init_mutex_);
  // Takes over the settings that may change while there is memory. The others, which are the size
  // of a page, the layout and the order of graphs, are those in force already.
  void adjust(const Settings& wanted) FERRO_EXCLUDES(init_mutex_);
  const FailureLog& failures() const { return failures_; }
  CUDAAllocator& previous() const { return previous_.allocator(); }
  // As configured, unless the device does not support pages.
  bool has_pages(c10::DeviceIndex index) const { return device(index).has_pages; }
  // Statistics of both allocators, without a query of the driver for complete frees.
  c10::CachingDeviceAllocator::DeviceStats statistics(c10::DeviceIndex index);
  // Empties our cache of the device and, unless a capture runs, all of the previous allocator's.
  void empty_cache_of(c10::DeviceIndex index);
  // Whether the previous allocator may own memory.
  bool has_previous() const { return previous_.is_in_use(); }
  // Whether requests outside pools get pages, by the current settings.
  bool is_paged(c10::DeviceIndex index) const { return route_now(device(index)) == Route::kOurs; }
  int device_count() const { return device_count_.load(std::memory_order_acquire); }
  // History::sample for all devices, including those added later.
  void sample_stacks(std::size_t bytes) FERRO_EXCLUDES(init_mutex_);
  // TagSums::read of an initialised device; nothing before the first tag.
  std::vector<TagTotal> tags(c10::DeviceIndex device,
                             TagSums::Tags which = TagSums::Tags::kLive) const;
  // From now on each device counts by tag; its observer stays.
  void count_tags() FERRO_EXCLUDES(init_mutex_);
  // Called after a change of `tag_limits()`.
  void follow_tag_limits() FERRO_EXCLUDES(init_mutex_);
  // Null when `device` was not initialised.
  DeviceMemory* core_of(int device) const;
  // DeviceMemory::pin on the device that has the range. False if none has all of it.
  bool pin(void* ptr, std::size_t bytes);
  void unpin(void* ptr, std::size_t bytes);
  // DeviceMemory::sleep and wake for memory with these tags, or for all memory (null). What graphs
  // replay on but do not keep goes with all memory, and with the memory in use of its pool. The
  // workspaces of cuBLAS and the states of generators go with all memory alone.
  using Tags = std::vector<std::string>;
  // `except`: tags of memory whose contents are dropped if `contents` keeps them, or the reverse.
  SleepOutcome sleep(c10::DeviceIndex device, const Tags* tags, Sleeper::Contents contents,
                     const Tags& except, Sleeper::Want want);
  SleepOutcome wake(c10::DeviceIndex device, const Tags* tags);
  // The text of the error after a `wake` that needed so many bytes.
  std::string message_of_failed_wake(c10::DeviceIndex device, std::size_t bytes);
  bool is_asleep(DevicePtr ptr) const;
  // Throws c10::Error if a capture into the pool would be refused, or would touch memory that is
  // asleep before `beginAllocateToPool`: PyTorch first writes the state of its random generator,
  // which stays in the capture if the pool is refused.
  void check_capture(c10::DeviceIndex device, const PoolId& pool) const;
  // Bytes that the previous allocator holds, which do not sleep.
  std::size_t held_by_previous(c10::DeviceIndex device) const {
    return previous_.reserved_bytes(device);
  }
  // Frees what `allocate` handed out; the one deleter of all DataPtrs.
  void free(void* ptr);

 private:
  enum class In : std::uint8_t { kOwnProcess, kForkedChild };
  CudaAllocator(const CudaApi& api, const Settings& config, CUDAAllocator& previous, In in);

  static constexpr std::size_t kLimitUnset = PageStore::kNoLimit - 1;
  // One device of PyTorch.
  struct Device {
    Device(const CudaApi& api, c10::DeviceIndex index, AddressIndex& addresses,
           const Settings& config, MemoryShortageCallback on_shortage, Serving serving);
    DeviceMemory core;
    GraphMemory graphs;
    PoolRouter router;
    History history;
    const bool has_pages;                  // else the previous allocator serves this device
    std::atomic<bool> serves_hits{false};  // requests outside pools are ours, as last seen
    std::atomic<Serving> grows;            // the allocator of the current stretch (end_stretch)
    std::atomic<std::size_t> fraction_limit{PageStore::kNoLimit};  // of setMemoryFraction
    std::atomic<std::size_t> limit_of_previous{kLimitUnset};       // as last set there
    std::atomic<bool> announces_captures{false};  // to the previous one; under announce_mutex_
    // The devices that can access all memory of this one.
    std::array<std::atomic<bool>, C10_COMPILE_TIME_MAX_GPUS> peers{};
  };

  void add_devices(int device_count) FERRO_EXCLUDES(init_mutex_);
  c10::DeviceIndex current_device() const;
  Device& device(c10::DeviceIndex index) const;
  [[noreturn]] void refuse_device(c10::DeviceIndex index) const;
  void* allocate_on(c10::DeviceIndex index, KnownStreams::Slot& stream, std::size_t bytes);
  // Serves a request that the stream's arena did not hit. Fills the slot's arena.
  void* allocate_beyond_hit(Device& device, c10::DeviceIndex index, KnownStreams::Slot& stream,
                            std::size_t bytes);
  Request to_request(std::size_t bytes, CallContext context) const;
  void* allocate_slow(Device& device, c10::DeviceIndex index, const KnownStreams::Slot& stream,
                      std::size_t bytes);
  // The rest of it: with the limits of tags, and without.
  void* allocate_limited(Device& device, c10::DeviceIndex index, const KnownStreams::Slot& stream,
                         const Request& request);
  void* allocate_unlimited(Device& device, c10::DeviceIndex index, const KnownStreams::Slot& stream,
                           const Request& request);
  [[noreturn]] void refuse_beyond_limit(c10::DeviceIndex index, BlockTag tag,
                                        std::size_t requested) const;
  void* allocate_here(Device& device, c10::DeviceIndex index, const PoolId& pool, StreamId stream,
                      const Request& request);
  // Allocates without `announce`. Before it fails, the previous allocator's pools may lend a block.
  AllocateResult allocate_unannounced(Device& device, c10::DeviceIndex index, const PoolId& pool,
                                      StreamId stream, const Request& request);
  [[noreturn]] void fail_allocation(Device& device, c10::DeviceIndex index, const PoolId& pool,
                                    StreamId stream, const Request& request,
                                    const OutOfMemoryFacts& facts);
  static std::string label_of_pool(const PoolId& id, const std::string& name);
  std::vector<PoolShare> pool_shares(c10::DeviceIndex index) const;
  // For a request that the previous allocator could not serve; its own message lacks our facts.
  std::string message_of_failed_previous(Device& device, c10::DeviceIndex index, std::size_t bytes,
                                         const std::string& pool_with_allocator);
  // The message of the failure, which `failures_` keeps.
  std::string record_failure(Device& device, c10::DeviceIndex index, const OutOfMemoryFacts& facts);
  Failure to_failure(Device& device, c10::DeviceIndex index, const OutOfMemoryFacts& facts);
  std::vector<TagTotal> awake_tags(Device& device, c10::DeviceIndex index) const;
  void announce(Device& device, c10::DeviceIndex index, void* ptr, std::size_t size);
  // `span` contains the pointer; null if the block is not ours.
  void free_slow(Span* span, void* ptr);
  // `ptr` lies in a span, but no live block starts there.
  void free_inside_block(void* ptr);
  // Sharing (cuda_allocator_ipc.cpp).
  void describe(const SharedRange& range, IpcHandle& handle);
  // Finds a descriptor of an exported unit of any device (DescriptorServer::Find).
  DescriptorStatus duplicate_export(std::uint64_t id, FileDescriptor* found);

  // Requests and blocks that are not ours (cuda_allocator_routing.cpp).
  enum class Route : std::uint8_t { kOurs, kPrevious, kUncached };
  struct Destination {
    Route route;
    PoolId pool;  // for kOurs
  };
  Serving serving() const { return serving_.load(std::memory_order_acquire); }
  // The route of requests outside pools, by the current settings.
  Route route_now(const Device& device) const;
  // The same, and updates the hit path.
  Route update_route(Device& device, c10::DeviceIndex index);
  // A request goes to `which`. If the other allocator grew until now, its stretch ends.
  void note_growth(Device& device, c10::DeviceIndex index, Serving which);
  void start_previous() FERRO_EXCLUDES(init_mutex_);
  // The previous allocator defers events and releases no memory while it knows of a capture. So
  // captures into our pools are announced to it.
  void announce_captures(Device& device, c10::DeviceIndex index) FERRO_EXCLUDES(announce_mutex_);
  // Called before a block of one allocator is freed while the other one grows, so that the peak
  // counts it. A free does not wait for the climb lock, because its holder may wait for the lock of
  // the previous allocator, which this thread may hold. If another thread holds the climb lock, the
  // peak may miss the block.
  void fold_peaks(Device& device, c10::DeviceIndex index, Serving frees);
  Destination destination(Device& device, StreamId stream) const;
  void* allocate_routed(Device& device, c10::DeviceIndex index, StreamId stream, Request request);
  void* allocate_in_previous(Device& device, c10::DeviceIndex index, const PoolId& pool,
                             StreamId stream, std::size_t bytes);
  // Null if it has none.
  void* borrow_from_previous(Device& device, c10::DeviceIndex index, StreamId stream,
                             std::size_t bytes);
  void free_foreign(void* ptr);
  // Passes this thread's annotations of its requests to the previous allocator.
  void forward_annotations();
  // A pool that neither allocator knows: unowned, or about to be created where requests are served.
  enum class IfUnknown : std::uint8_t { kUnowned, kCreated };
  bool is_previous_pool(Device& device, c10::DeviceIndex index, c10::MempoolId_t id,
                        IfUnknown unknown = IfUnknown::kUnowned) const;
  bool makes_in_previous(const Device& device, const PoolId& id) const FERRO_EXCLUDES(init_mutex_);
  // Moves a pool without memory. No-op if requests are diverted to it or it is a group's member.
  void move_pool_to_previous(Device& device, c10::DeviceIndex index, c10::MempoolId_t id);
  void set_use_on_oom_in_previous(c10::DeviceIndex index, c10::MempoolId_t id, bool use);
  // Whether the tensors that PyTorch itself computes with are among what the tags name.
  enum class IfOfPyTorch : std::uint8_t { kUnwanted, kWanted };
  static SleepFilter filter_of(const Tags* tags, IfOfPyTorch own);
  void choose_observed() FERRO_REQUIRES(init_mutex_);
  // For snapshots: an annotation {"graph_pool": name, "segment_pool_id": "(1, 2)"} for each private
  // pool that has a name.
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> pool_names(
      c10::DeviceIndex device) const;
  // Releases the failed captures of this thread on all devices (graph/pool_router.h), and
  // everything that only they held.
  void release_failed_captures();
  // Makes the previous allocator forget a pool without holders, so that it may be used again. `own`:
  // the captures that the caller has announced. Throws c10::Error if the pool cannot be used yet.
  void reopen_in_previous(c10::DeviceIndex index, c10::MempoolId_t id, int own);
  void release_in_previous(c10::DeviceIndex index, c10::MempoolId_t id, bool is_ended) const;
  static void check_sharing(SharingResult result);
  // Follows up on the captures that the device's router released.
  void follow_released(Device& device);
  // Gives `user` access to all memory of `owner`.
  void add_peer(c10::DeviceIndex owner, c10::DeviceIndex user);
  // Grants peers the access that they had before this allocator served.
  void adopt_peers();
  void switch_to(Serving serving) FERRO_REQUIRES(switch_mutex_);
  bool has_pages() const;
  void end_stretch(c10::DeviceIndex index, Serving grew);
  bool empty_previous_cache();
  bool relieve_shortage();
  void apply_limit(c10::DeviceIndex index);
  void apply_limit_of_previous(Device& device, c10::DeviceIndex index);
  // The most bytes that both allocators may hold together.
  std::size_t limit_of_both(const Device& owner) const;

  void report_to_profiler(Device& device, c10::DeviceIndex index, void* ptr, std::int64_t bytes);

  static constexpr std::size_t kMaxDevices = 64;
  static constexpr std::size_t kTooManyBytes = std::size_t{1} << 60;

  const CudaApi& api_;
  const In in_;
  const std::vector<std::size_t>& roundup_divisions_ = roundup_divisions();
  const std::size_t page_bytes_;
  const Layout layout_;                    // as configured
  std::atomic<std::size_t> memory_limit_;  // that of `config_`
  std::atomic<std::size_t> headroom_;      // the same
  std::atomic<Layout> graph_layout_;       // the same
  PreviousAllocator previous_;
  UncachedAllocations uncached_;
  Mutex switch_mutex_;
  std::atomic<Serving> serving_{Serving::kPrevious};
  std::atomic<bool> enabled_{true};          // by torch.cuda.caching_allocator_enable
  std::atomic<bool> previous_lends_{false};  // some pool of it may serve requests outside pools
  std::atomic<bool> previous_grows_{false};  // on some device that has pages
  Mutex announce_mutex_;
  AddressIndex addresses_;
  FailureLog failures_;
  HostPools host_pools_;
  WatchedBlocks watched_blocks_;
  mutable Mutex init_mutex_;
  // The pools that only the previous allocator can serve.
  enum class PreviousPool : std::uint8_t { kUnsplit, kWithAllocator };
  std::map<PoolId, PreviousPool> previous_pools_ FERRO_GUARDED_BY(init_mutex_);
  Settings config_ FERRO_GUARDED_BY(init_mutex_);
  std::atomic<int> device_count_{0};
  std::array<std::atomic<Device*>, kMaxDevices> devices_{};
  DescriptorServer descriptor_server_{
      [this](std::uint64_t id, FileDescriptor* found) { return duplicate_export(id, found); }};
  IpcReceiver received_;
  StatusServer status_server_{[this] { return status_text(*this); }};

  // The observers of the devices, including devices added later.
  HistorySettings history_settings_ FERRO_GUARDED_BY(init_mutex_);
  std::vector<History::Tracker> trackers_ FERRO_GUARDED_BY(init_mutex_);
  std::vector<History::FailureObserver> failure_observers_ FERRO_GUARDED_BY(init_mutex_);
  std::vector<OomRejectionObserver> rejection_observers_ FERRO_GUARDED_BY(init_mutex_);
  std::atomic<bool> history_enabled_{false};
  std::atomic<bool> observed_{false};  // by a history, a tracker, watched blocks or tags' limits
  std::atomic<bool> has_tags_{false};  // some thread has set one
  TraceRing<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
};

}  // namespace ferro
