// A naive model of a device's memory beside the real one, performing instructions on both.
//
// The model knows the live blocks, by address; the freed blocks that another stream still uses; and
// who holds which pool. It checks that no two live blocks overlap, that nothing is handed out while
// another stream uses it unless the new owner's work comes after that use, that contents survive
// (traffic.h), that a failure is honest, and everything that the allocator says about itself. Throws
// ModelError or InternalError.
#pragma once

#include "ferro/core/device_memory.h"
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "support/faulty_api.h"
#include "support/instructions.h"
#include "support/traffic.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ferro::testing {

class DeviceModel {
 public:
  static constexpr std::size_t kPages = 40;
  static constexpr std::array<PoolId, 3> kPools = {kDefaultPool, PoolId{0, 5}, PoolId{6, 0}};

  // A look inside merges what is unmerged, so usually it does not follow every step.
  static constexpr unsigned kLookEvery = 8;

  DeviceModel(const HandleRules& handles, const std::string& settings,
              unsigned look_every = kLookEvery)
      : gpu_(kPages, settings), look_every_(look_every) {
    FaultyApi::reset();
    device_ = std::make_unique<DeviceMemory>(FaultyApi::table(), 0, addresses(),
                                             AllocatorConfig{.handles = handles}, nullptr);
  }
  // A model that failed leaves its device behind, whose destructor needs a sound one.
  ~DeviceModel() {
    FaultyApi::reset();
    static_cast<void>(device_.release());
  }

  void perform(const Instruction& instruction) {
    if (fault_struck()) {
      FaultyApi::reset();
    }
    std::visit([this](const auto& i) { (*this)(i); }, instruction);
    check_pages();
    check_order();
    if (++steps_ % look_every_ == 0) {
      check_everything();
    }
  }

  // Ends captures and work, frees everything, and expects an empty device.
  void finish() {
    FaultyApi::reset();
    check_everything();
    for (unsigned stream = 0; stream < Traffic::kStreams; ++stream) {
      (*this)(EndCapture{stream});
    }
    while (!live_.empty()) {
      (*this)(Free{0});
    }
    SimGpu::finish_all();
    check_order();
    traffic_.verify();
    for (unsigned pool = 1; pool < kPools.size(); ++pool) {
      while (device_->release_pool(kPools[pool])) {
      }
    }
    device_->empty_cache();
    check_everything();
    expect(device_->segments(nullptr).empty() && SimGpu::used_pages() == 0, "nothing is left");
    device_.reset();
  }

  // Instructions. A refusal of the driver must leave the model right as it is.
  void operator()(const Allocate& i) {
    const PoolId pool = kPools[i.pool % kPools.size()];
    const std::uint64_t created = device_->store().counts().created;
    AllocateResult result;
    try {
      result = device_->allocate(pool, traffic_.stream(i.stream), {i.size, i.size});
    } catch (const DriverError&) {
      expect(fault_struck(), "only a fault makes the driver refuse");
      return;
    }
    const PageCounts pages = device_->store().counts();
    expect(pages.created == created || pages.held <= limit_pages_, "the limit holds");
    if (result.ptr == kNull) {
      expect(fault_struck() || std::min(limit_pages_, kPages) < pages.held + pages_of(i.size),
             "out of memory only when new pages cannot help");
      return;
    }
    expect(result.size == i.size && address_of(result.ptr) % kBlockAlignment == 0, "the size");
    const Heap& heap = *addresses().find(result.ptr)->heap();
    expect(heap.pool() == pool && heap.stream() == traffic_.stream(i.stream), "the right heap");
    become_live(result.ptr, i.size, pool, i.stream % Traffic::kStreams);
  }
  void operator()(const Free& i) {
    if (live_.empty()) {
      return;
    }
    const auto found = nth_live(i.block);
    const auto [address, block] = *found;
    const DevicePtr ptr{address};
    if (block.tag != 0 && !traffic_.capturing(block.stream)) {
      traffic_.read(block.stream, ptr, block.size, block.tag);
    }
    for (const Use& use : block.uses) {
      quarantine(address, block.size, use);
    }
    Span& span = *addresses().find(ptr);
    const FreeResult freed = span.heap()->free(span, ptr);
    expect(freed.error == FreeError::kNone && freed.size == block.size, "a free never fails");
    expect(span.heap()->free(span, ptr).error == FreeError::kNotLive, "nothing is freed twice");
    live_.erase(found);
  }
  void operator()(const RecordStream& i) {
    if (live_.empty()) {
      return;
    }
    const auto found = nth_live(i.block);
    Block& block = found->second;
    const DevicePtr ptr{found->first};
    const unsigned user = i.stream % Traffic::kStreams;
    Span& span = *addresses().find(ptr);
    try {
      expect(span.heap()->record_stream(span, ptr, traffic_.stream(user)), "a live block");
    } catch (const DriverError&) {
      expect(fault_struck(), "only a fault makes the driver refuse");
      return;
    }
    if (user == block.stream) {
      return;
    }
    block.uses.push_back({user, traffic_.capture(user)});
    if (block.tag != 0 && !traffic_.capturing(user) && !traffic_.capturing(block.stream)) {
      traffic_.order(block.stream, user);
      traffic_.read(user, ptr, block.size, block.tag);
    }
  }
  void operator()(const Advance& i) { traffic_.advance(i.stream); }
  void operator()(const Finish& i) { traffic_.finish(i.stream); }
  void operator()(const BeginCapture& i) {
    traffic_.begin_capture(i.stream);
    device_->set_captures(traffic_.captures());
  }
  void operator()(const EndCapture& i) {
    traffic_.end_capture(i.stream);
    device_->set_captures(traffic_.captures());
  }
  void operator()(const EmptyCache&) {
    guarded([this] { device_->empty_cache(); });
  }
  void operator()(const EmptyPool& i) {
    guarded([&] { device_->empty_pool(kPools[i.pool % kPools.size()]); });
  }
  void operator()(const CollectPending&) {
    guarded([this] { device_->collect_pending(); });
  }
  void operator()(const HoldPool& i) {
    ++holds_[private_pool(i.pool)];
    device_->hold_pool(private_pool(i.pool));
  }
  void operator()(const ReleasePool& i) {
    int& holds = holds_[private_pool(i.pool)];
    expect(device_->release_pool(private_pool(i.pool)) == (holds > 0),
           "a pool is released as often as it was held");
    holds -= holds > 0 ? 1 : 0;
  }
  void operator()(const TakeCheckpoint& i) {
    PoolCheckpoint taken;
    guarded([&] {
      if (take_checkpoint(*device_, private_pool(i.pool), &taken) == CheckpointError::kNone) {
        checkpoint_ = taken;
      }
    });
  }
  void operator()(const RestoreCheckpoint&) {
    if (!checkpoint_ || !settle_uses(checkpoint_->pool)) {
      return;
    }
    CheckpointChange change;
    CheckpointError error = CheckpointError::kPendingFrees;
    guarded([&] { error = restore_checkpoint(*device_, *checkpoint_, &change); });
    expect(error == CheckpointError::kNone || (change.freed.empty() && change.allocated.empty()),
           "an error changes nothing");
    std::map<std::uint64_t, Block> before;
    for (const BlockView& view : change.freed) {
      const auto found = live_.find(address_of(view.ptr));
      expect(found != live_.end() && found->second.size == view.size, "what was freed was live");
      before.insert(live_.extract(found));
    }
    for (const BlockView& view : change.allocated) {
      const auto same = before.find(address_of(view.ptr));
      const StreamId stream = addresses().find(view.ptr)->heap()->stream();
      if (same != before.end() && same->second.size == view.size) {
        same->second.uses.clear();
        live_.insert(before.extract(same));
      } else {
        become_live(view.ptr, view.size, checkpoint_->pool, number_of(stream));
      }
    }
  }
  void operator()(const SetLimit& i) {
    limit_pages_ = i.pages == 0 ? PageStore::kNoLimit : i.pages;
    device_->store().set_limit(i.pages == 0 ? PageStore::kNoLimit : i.pages * kPageBytes);
  }
  void operator()(const FailNext& i) {
    FaultyApi::fail_only(kFailing[i.function % std::size(kFailing)], 1,
                         i.out_of_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
  }

 private:
  struct Use {
    unsigned stream;
    unsigned capture;
  };
  struct Block {
    std::size_t size = 0;
    PoolId pool;
    unsigned stream = 0;
    std::uint8_t tag = 0;  // 0: never written
    std::vector<Use> uses;
  };
  // Freed memory that a stream may still use.
  struct Quarantined {
    std::uint64_t begin, end;
    unsigned stream;
    unsigned capture;              // until this capture ends, or
    std::shared_ptr<Event> event;  // until this event is complete
  };
  // What a stream does with memory that it got comes after the use of another stream.
  struct Promise {
    std::shared_ptr<Event> before;
    std::shared_ptr<Event> after;
  };
  using Live = std::map<std::uint64_t, Block>;

  // One for all models: it is large, and empty when a model is finished.
  static AddressIndex& addresses() {
    static AddressIndex index;
    return index;
  }
  static void expect(bool condition, const char* what) {
    if (!condition) {
      throw ModelError(std::string("not so: ") + what);
    }
  }
  static std::size_t pages_of(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }
  static PoolId private_pool(unsigned number) { return kPools[1 + number % (kPools.size() - 1)]; }
  Live::iterator nth_live(unsigned n) {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(n % live_.size()));
  }
  unsigned number_of(StreamId stream) const {
    unsigned number = 0;
    while (traffic_.stream(number) != stream) {
      ++number;
    }
    return number;
  }
  static bool fault_struck() { return *FaultyApi::failed() != '\0'; }
  template <typename Function>
  void guarded(Function function) {
    try {
      function();
    } catch (const DriverError&) {
      expect(fault_struck(), "only a fault makes the driver refuse");
    }
  }

  void become_live(DevicePtr ptr, std::size_t size, const PoolId& pool, unsigned stream) {
    const std::uint64_t begin = address_of(ptr);
    const auto after = live_.lower_bound(begin);
    expect(after == live_.end() || begin + size <= after->first, "no overlap with the next");
    expect(
        after == live_.begin() || std::prev(after)->first + std::prev(after)->second.size <= begin,
        "no overlap with the one before");
    std::erase_if(quarantine_, [this](const Quarantined& q) { return is_over(q); });
    for (const Quarantined& q : quarantine_) {
      if (begin < q.end && q.begin < begin + size) {
        expect(q.event != nullptr, "no other stream uses it any more");
        promises_.push_back({q.event, traffic_.last_place(stream)});
      }
    }
    Block& block = live_[begin] = {size, pool, stream, 0, {}};
    if (!traffic_.capturing(stream)) {
      block.tag = static_cast<std::uint8_t>(1 + next_tag_++ % 255);
      traffic_.write(stream, ptr, size, block.tag);
    }
  }
  void quarantine(std::uint64_t begin, std::size_t size, const Use& use) {
    const unsigned running = traffic_.capture(use.stream);
    if (use.capture != 0 && use.capture != running) {
      return;  // joined by the end of its capture
    }
    quarantine_.push_back(
        {begin, begin + size, use.stream, running,
         running == 0 ? std::make_shared<Event>(traffic_.record(use.stream)) : nullptr});
  }
  bool is_over(const Quarantined& q) const {
    return q.event != nullptr ? q.event->complete() : traffic_.capture(q.stream) != q.capture;
  }
  void check_order() {
    std::erase_if(promises_, [](const Promise& promise) {
      if (promise.after->complete()) {
        expect(promise.before->complete(), "the new owner waits for the use before");
        return true;
      }
      return false;
    });
  }
  // A checkpoint is restored only when nobody else uses the pool. False: captures do.
  bool settle_uses(const PoolId& pool) {
    for (const auto& [address, block] : live_) {
      for (const Use& use : block.pool == pool ? block.uses : std::vector<Use>{}) {
        if (traffic_.capturing(use.stream)) {
          return false;
        }
        traffic_.finish(use.stream);
      }
    }
    return true;
  }
  void check_pages() {
    const PageCounts pages = device_->store().counts();
    expect(SimGpu::used_pages() == pages.held, "the device's pages are the store's");
    expect(pages.created - pages.released == pages.held, "created and released");
  }
  void check_everything() {
    device_->check_invariants();
    auto next = live_.begin();
    for (const SegmentView& segment : device_->segments(nullptr)) {
      for (const BlockView& block : segment.blocks) {
        if (block.state == BlockState::kLive) {
          expect(next != live_.end() && next->first == address_of(block.ptr) &&
                     next->second.size == block.size,
                 "the live blocks are the model's");
          ++next;
        }
      }
    }
    expect(next == live_.end(), "no live block is missing");
    const StatTable table = device_->stats().read();
    expect(table[kBlocks][kAll].current == static_cast<std::int64_t>(live_.size()),
           "live blocks are counted");
    for (const auto& row : table) {
      for (const StatValue& value : row) {
        expect(value.peak >= value.current && value.current >= 0, "peaks");
        expect(value.increased - value.decreased == value.current, "sums");
      }
    }
  }

  SimGpu gpu_;
  const unsigned look_every_;
  Traffic traffic_;
  std::unique_ptr<DeviceMemory> device_;
  Live live_;
  std::vector<Quarantined> quarantine_;
  std::vector<Promise> promises_;
  std::map<PoolId, int> holds_;
  std::optional<PoolCheckpoint> checkpoint_;
  std::size_t limit_pages_ = PageStore::kNoLimit;
  unsigned next_tag_ = 0;
  unsigned steps_ = 0;
};

// Performs a program; a failure is thrown again with the program up to it.
inline void run_program(const std::vector<Instruction>& program, const HandleRules& handles,
                        const std::string& settings = SimGpu::kManual,
                        unsigned look_every = DeviceModel::kLookEvery) {
  std::size_t done = 0;
  try {
    DeviceModel model(handles, settings, look_every);
    for (const Instruction& instruction : program) {
      ++done;
      model.perform(instruction);
    }
    model.finish();
  } catch (const std::exception& error) {
    const std::vector<Instruction> so_far(program.begin(),
                                          program.begin() + static_cast<std::ptrdiff_t>(done));
    throw ModelError(std::string(error.what()) + "\nafter\n" + to_code(so_far));
  }
}

inline std::vector<Instruction> decode(const std::uint8_t* data, std::size_t size) {
  ByteReader in(data, size);
  const Profile profile = next_profile(in);
  std::vector<Instruction> program;
  while (!in.empty()) {
    program.push_back(next_instruction(in, profile));
  }
  return program;
}

}  // namespace ferro::testing
