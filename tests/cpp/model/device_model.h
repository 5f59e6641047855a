// A naive model of a device's memory beside the real one, performing instructions on both.
//
// The model knows the live blocks, by address; the freed blocks that another stream still uses; the
// holds of each pool; and the blocks that were shared with other processes. It checks that no two
// live blocks overlap, that memory in use by another stream is handed out only if the new owner's
// work is ordered after that use, that contents survive (traffic.h), that a shared block keeps its
// handles and no other block ever gets them (driver_ledger.h), that a failure was unavoidable, and
// that all reports of the allocator are right. Throws ModelError or InternalError.
//
// The instructions are in device_model_blocks.h (allocate, free, use), device_model_pools.h (pools,
// checkpoints), device_model_groups.h (exclusive groups), device_model_replays.h (their graphs),
// device_model_sharing.h (other processes, peers, destroyed streams) and device_model_shortage.h
// (limits, callbacks, when a request may fail).
#pragma once

#include "ferro/core/device/device_memory.h"
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "ferro/graph/graph_memory.h"
#include "model/program_record.h"
#include "support/decoding.h"
#include "support/faulty_api.h"
#include "support/instructions.h"
#include "support/sleep_filters.h"
#include "support/traffic.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace ferro::testing {

// Known faults that the model tolerates, each with a test in found_test.cpp. The constant of a
// mended fault becomes false and is then removed.
namespace known {
inline constexpr bool kRejectionsStay = false;
inline constexpr bool kSharedPagesBeyondLimit = false;
inline constexpr bool kGoneStreamIsAskedByFree = false;
}  // namespace known

class DeviceModel {
 public:
  static constexpr std::size_t kPages = 40;
  static constexpr std::size_t kDeviceBytes = kPages * kPageBytes;
  static constexpr std::array<PoolId, 6> kPools = {kDefaultPool, PoolId{0, 5},  PoolId{6, 0},
                                                   PoolId{0, 9}, PoolId{0, 11}, PoolId{0, 13}};

  // From here on the model gives out addresses, so that their order is that of the reservations.
  static constexpr CUdeviceptr kFirstAddress = CUdeviceptr{0x3000} << 32;

  // A full check looks at all blocks, so it usually does not follow every step.
  static constexpr unsigned kLookEvery = 8;

  DeviceModel(const World& world, const std::string& settings, unsigned look_every = kLookEvery)
      : gpu_(kPages, settings + ",devices=2,polls=16"), world_(world), look_every_(look_every) {
    FaultyApi::reset();
    FaultyApi::choose_addresses(kFirstAddress);
    FaultyApi::keep(&ledger_);
    device_ = std::make_unique<DeviceMemory>(FaultyApi::table(), 0, addresses(), config(),
                                             [this] { return relieve(); });
    graph_memory_ = std::make_unique<GraphMemory>(*device_);
    device_->set_observer(&record_);
  }
  // A failed model leaks its device, whose destructor needs a sound state.
  ~DeviceModel() {
    FaultyApi::reset();
    if (device_ != nullptr) {
      device_->set_observer(nullptr);
      // Never destroyed, so that they do not count as leaks.
      static auto& left =
          *new std::vector<std::tuple<GraphMemory*, DeviceMemory*, AddressIndex*>>();
      left.emplace_back(graph_memory_.release(), device_.release(), index().release());
    }
    FaultyApi::keep(nullptr);
    FaultyApi::choose_addresses(0);
  }

  void perform(const Instruction& instruction) {
    if (fault_struck()) {
      FaultyApi::reset();
    }
    ledger_.begin_step();
    std::visit([this](const auto& i) { (*this)(i); }, instruction);
    check_step();
    if (++steps_ % look_every_ == 0) {
      check_everything();
    }
  }
  // Ends captures and work, frees everything, and expects an empty device.
  void finish();
  // What the program did; complete after `finish`.
  const std::string& record() const { return recorded_; }

  // Instructions. After a refusal by the driver the model must still be right.
  void operator()(const Allocate& i) { allocate(pool_for(i.pool), i); }
  void operator()(const AllocateAt& i);
  void operator()(const Free& i) {
    if (!live_.empty()) {
      free(nth_live(i.block));
    }
  }
  void operator()(const FreeInUse& i);
  void operator()(const RecordStream& i);
  void operator()(const Advance& i) { traffic_.advance(i.stream); }
  void operator()(const Finish& i) { traffic_.finish(i.stream); }
  void operator()(const BeginCapture& i) { begin_capture(i.stream); }
  void operator()(const EndCapture& i);
  void operator()(const EmptyCache&) {
    guarded([this] { device_->empty_cache(); });
  }
  void operator()(const EmptyPool& i) {
    guarded([&] { device_->empty_pool(kPools[i.pool % kPools.size()]); });
  }
  void operator()(const CollectPending&) {
    guarded([this] { device_->collect_pending(); });
  }
  void operator()(const HoldPool& i) { hold(private_pool(i.pool)); }
  void operator()(const ReleasePool& i);
  void operator()(const SetUseOnOom& i);
  void operator()(const TakeCheckpoint& i);
  void operator()(const RestoreCheckpoint&);
  void operator()(const JoinGroup& i);
  void operator()(const LeaveGroup& i);
  void operator()(const BeginGraph& i);
  void operator()(const EndGraph& i);
  void operator()(const Replay& i);
  void operator()(const Export& i);
  void operator()(const AddPeer&);
  void operator()(const DestroyStream&);
  void operator()(const SetLimit& i) {
    limit_ = i.pages == 0 ? PageStore::kNoLimit : i.pages * kPageBytes;
    device_->store().set_limit(limit_);
  }
  void operator()(const SetRejectionLimit& i) {
    rejection_limit_before_ = rejection_limit_;
    rejection_limit_ = i.pages == 0 ? PageStore::kNoLimit : i.pages * kPageBytes;
  }
  void operator()(const OthersHold& i);
  void operator()(const OnShortage& i) { on_shortage_ = i; }
  void operator()(const Nap&);
  void operator()(const FailNext& i) {
    FaultyApi::fail_only(kFailing[i.function % std::size(kFailing)], 1,
                         i.out_of_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
  }

 private:
  struct Use {
    unsigned stream;
    unsigned capture;
  };
  // The units that a block is shared as, with the handles behind it at that time.
  struct Shared {
    SharedRange range;
    std::vector<DriverLedger::Handle> handles;
  };
  static constexpr unsigned kGone = ~0U;
  static constexpr unsigned kGroups = 2;
  struct Block {
    std::size_t size = 0;
    PoolId pool;
    unsigned stream = 0;   // kGone: a destroyed short stream
    std::uint8_t tag = 0;  // 0: never written
    std::vector<Use> uses = {};
    std::optional<Shared> shared = {};
    std::shared_ptr<Event> last_work = nullptr;  // of a destroyed stream
    unsigned graph = 0;  // the graph whose capture received it, and which writes it
    // Of an ended capture into a member: only its own graph writes there.
    bool apart = false;
    bool exposed = false;  // likewise, but its end failed: it has no pages of its own
  };
  // Freed memory that a stream may still use.
  struct Quarantined {
    std::uint64_t begin, end;
    unsigned stream;
    unsigned capture;              // until this capture ends, or
    std::shared_ptr<Event> event;  // until this event is complete
  };
  // The work of a stream on its new memory comes after the use by another stream.
  struct Promise {
    std::shared_ptr<Event> before;
    std::shared_ptr<Event> after;
  };
  struct Freed {
    std::uint64_t address;
    PoolId pool;
    StreamId stream;
  };
  using Live = std::map<std::uint64_t, Block>;
  // The memory that a capture received, in that order; a replay writes all of it.
  struct Graph {
    unsigned number = 0;
    PoolId pool;
    unsigned stream = 0;  // of the capture
    bool of_member = false;
    std::vector<std::pair<std::uint64_t, std::size_t>> ranges = {};
  };

  // Shared by all models: it is large, and empty after a finished model. A failed model keeps it.
  static std::unique_ptr<AddressIndex>& index() {
    static std::unique_ptr<AddressIndex> index;
    return index;
  }
  static AddressIndex& addresses() {
    if (index() == nullptr) {
      index() = std::make_unique<AddressIndex>();
    }
    return *index();
  }
  static void expect(bool condition, const char* what) {
    if (!condition) {
      throw ModelError(std::string("not so: ") + what);
    }
  }
  static std::size_t pages_of(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }
  static bool fault_struck() { return *FaultyApi::failed() != '\0'; }
  // Only a planted fault may make the function throw; `perform` counted it.
  template <typename Function>
  void guarded(Function function) {
    try {
      function();
    } catch (const DriverError&) {
      expect(fault_struck(), "only a fault makes the driver refuse");
    }
  }
  AllocatorConfig config();

  // Blocks.
  static Heap& heap_of(std::uint64_t address) {
    return *addresses().find(DevicePtr{address})->heap();
  }
  Live::iterator nth_live(unsigned n) {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(n % live_.size()));
  }
  Request request_of(std::size_t size);
  void allocate(const PoolId& pool, const Allocate& request);
  void free(Live::iterator found);
  // The owner of blocks of the default pool: their stream and size class.
  using Owner = std::pair<unsigned, bool>;
  static Owner owner_of(unsigned stream, std::size_t size) {
    return {stream % Traffic::kStreams, is_large(size)};
  }
  struct LateUse {
    std::shared_ptr<Event> last;
    LateWait wait;
    std::uint64_t begin, end;
  };
  void wait_for_late_uses(const PoolId& pool, const Owner& owner);
  void wait_for_uses_of(const Block& block, std::uint64_t begin);
  void wait_for(const LateUse& use, unsigned stream);
  // Captures are announced before they begin.
  void begin_capture(unsigned stream) {
    device_->set_captures(traffic_.captures() + (traffic_.capturing(stream) ? 0 : 1));
    traffic_.begin_capture(stream);
  }
  unsigned number_of(StreamId stream) const;
  static unsigned number_of(const PoolId& pool) {
    return static_cast<unsigned>(std::ranges::find(kPools, pool) - kPools.begin());
  }
  bool is_capturing(unsigned stream) const { return stream != kGone && traffic_.capturing(stream); }
  bool is_free_range(const PoolId& pool, StreamId stream, DevicePtr ptr, std::size_t size);
  void become_live(DevicePtr ptr, std::size_t size, const PoolId& pool, unsigned stream);
  void quarantine(std::uint64_t begin, std::size_t size, const Use& use);
  bool is_over(const Quarantined& q) const {
    return q.event != nullptr ? q.event->complete() : traffic_.capture(q.stream) != q.capture;
  }
  bool settle_uses(const PoolId& pool);

  // Pools.
  static PoolId private_pool(unsigned number) { return kPools[1 + number % (kPools.size() - 1)]; }
  void hold(const PoolId& pool);
  void be_held(const PoolId& pool) {
    if (pool != kDefaultPool && holds_[pool] == 0) {
      hold(pool);
    }
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> live_in(const PoolId& pool) const;

  // Groups.
  PoolId pool_for(unsigned number) const;
  void note_freed(const Block& block);
  void wait_for_replays(const Block& block);
  void note_captured(const PoolId& pool, std::uint64_t begin, std::size_t size);
  void end_graph(PoolId pool, bool succeeds);
  bool release(const PoolId& pool);
  bool is_member(const PoolId& pool) const { return groups_.contains(pool); }
  bool is_alone(const PoolId& pool) const;
  void settle_blocks(const PoolId& pool);
  bool has_pages(const PoolId& pool);
  void write_first(std::uint64_t begin, Block& block);
  bool writes(const Graph& graph, std::uint64_t begin, std::size_t size) const;
  bool may_replay(const Graph& graph, unsigned stream) const;
  void replay(const Graph& graph, unsigned stream);
  using Pages = std::map<CUdeviceptr, DriverLedger::Handle>;
  Pages pages_of(std::span<const Graph> graphs) const;
  void check_groups();
  void check_owners();

  // Shortage.
  bool relieve();
  std::size_t budget() const;
  std::size_t bytes_in_use();
  void check_failure(const Allocate& request, const OutOfMemoryFacts& facts,
                     std::size_t held_before);

  // Sharing.
  void check_shared(std::uint64_t address, const Block& block);
  void check_peer();
  void check_places(const std::vector<SegmentView>& segments);
  bool may_go();

  // Checks.
  void check_step();
  void check_order();
  void check_pages();
  void check_everything();
  void check_empty();

  SimGpu gpu_;
  const World world_;
  const unsigned look_every_;
  DriverLedger ledger_;
  Traffic traffic_;
  ProgramRecord record_{[](const PoolId& pool) { return number_of(pool); },
                        [this](StreamId stream) { return number_of(stream); }};
  std::string recorded_;
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<GraphMemory> graph_memory_;
  Live live_;
  std::vector<Quarantined> quarantine_;
  std::vector<Promise> promises_;
  std::map<Owner, std::vector<LateUse>> late_uses_;  // of freed blocks
  std::deque<Freed> freed_;                          // the last ones
  std::map<PoolId, int> holds_;
  std::optional<PoolCheckpoint> checkpoint_;
  std::vector<std::pair<std::uint64_t, std::size_t>> in_checkpoint_;
  std::map<PoolId, unsigned> groups_;  // of members; pools that left have a group of their own
  std::map<PoolId, Graph> running_;    // captures into pools
  std::vector<Graph> graphs_;
  std::map<unsigned, std::shared_ptr<Event>> last_replay_;  // of each group
  // For each pool, work on freed blocks, where its graphs may write again.
  std::map<PoolId, std::vector<std::shared_ptr<Event>>> last_uses_;
  std::set<PoolId> excluded_;   // had a checkpoint
  std::set<PoolId> captured_;   // non-members with a graph that has pages
  std::set<PoolId> unsettled_;  // the end of their last capture failed
  unsigned next_graph_ = 0;
  unsigned next_lone_ = kGroups;
  std::size_t limit_ = PageStore::kNoLimit;
  std::size_t rejection_limit_ = PageStore::kNoLimit;
  std::size_t rejection_limit_before_ = PageStore::kNoLimit;  // in force until the next request
  CUdeviceptr others_ = 0;                                    // memory of other programs
  std::size_t others_bytes_ = 0;
  OnShortage on_shortage_{Relief::kNone, 0, kBlockAlignment};
  bool relieving_ = false;
  bool has_peer_ = false;
  bool ever_failed_ = false;  // a driver call failed
  std::size_t lost_reservations_ = 0;
  unsigned next_tag_ = 0;
  unsigned next_call_ = 0;
  unsigned steps_ = 0;
};

}  // namespace ferro::testing

// The parts of the model.
#include "model/device_model_blocks.h"
#include "model/device_model_checks.h"
#include "model/device_model_groups.h"
#include "model/device_model_pools.h"
#include "model/device_model_program.h"
#include "model/device_model_replays.h"
#include "model/device_model_sharing.h"
#include "model/device_model_shortage.h"
