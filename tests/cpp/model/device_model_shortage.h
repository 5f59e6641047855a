// Shortage of memory: limits, other programs, callbacks, and the conditions for a request to fail.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

inline AllocatorConfig DeviceModel::config() {
  AllocatorConfig config;
  config.handles = world_.coarse_handles ? kCoarseHandles : HandleRules{};
  config.headroom = world_.headroom * kPageBytes;
  config.graph_order = world_.any_order ? GraphOrder::kAny : GraphOrder::kCaptured;
  if (world_.short_streams) {
    config.stream_lasts = [this](DeviceId, StreamId stream) {
      return stream == traffic_.stream(0) || stream == traffic_.stream(1);
    };
  }
  config.rejection_limit = [this](std::size_t) { return rejection_limit_; };
  return config;
}

inline void DeviceModel::operator()(const OthersHold& i) {
  if (others_ != 0) {
    SimGpu::expect(SimGpu::api().mem_free(others_));
    others_ = 0;
    others_bytes_ = 0;
  }
  const std::size_t bytes = i.pages * kPageBytes;
  if (bytes != 0 && SimGpu::api().mem_alloc(&others_, bytes) == CUDA_SUCCESS) {
    others_bytes_ = bytes;
  }
}

// A callback does nothing when its own request calls it.
inline bool DeviceModel::relieve() {
  if (relieving_) {
    return false;
  }
  relieving_ = true;
  const std::size_t live = live_.size();
  switch (on_shortage_.relief) {
    case Relief::kNone:
      break;
    case Relief::kFreeBlocks:
      for (unsigned i = 0; i < 3; ++i) {
        (*this)(Free{on_shortage_.what + i});
      }
      break;
    case Relief::kAllocate:
      (*this)(Allocate{0, on_shortage_.what, on_shortage_.size});
      break;
    case Relief::kEmptyCache:
      (*this)(EmptyCache{});
      break;
  }
  relieving_ = false;
  // Its return value need not be true.
  return live_.size() < live || on_shortage_.what % 2 == 0;
}

// The most bytes that the allocator may hold.
inline std::size_t DeviceModel::budget() const {
  const std::size_t taken = others_bytes_ + world_.headroom * kPageBytes;
  return std::min({limit_, rejection_limit_, kDeviceBytes - std::min(kDeviceBytes, taken)});
}

// Bytes of handles that carry a live byte or belong to a private pool that is held. Everything else
// can serve any request, as long as no capture runs.
inline std::size_t DeviceModel::bytes_in_use() {
  std::map<DriverLedger::Handle, std::size_t> handles;
  for (const SegmentView& segment : device_->report().segments(nullptr)) {
    const bool shared_out = segment.pool == kDefaultPool;
    const bool kept = !shared_out && holds_[segment.pool] > 0;
    for (const BlockView& block : segment.blocks) {
      if (kept || block.state == BlockState::kLive ||
          (block.state == BlockState::kPending && !shared_out)) {
        ledger_.collect_handles(address_of(block.ptr), block.size, handles);
      }
    }
  }
  std::size_t in_use = 0;
  for (const auto& [handle, bytes] : handles) {
    in_use += bytes;
  }
  return in_use;
}

inline void DeviceModel::check_failure(const Allocate& request, const OutOfMemoryFacts& facts,
                                       std::size_t held_before) {
  record_.add_failure(facts);
  // The memory for the request if no existing memory serves it.
  const std::size_t needed = pages_of(request.size) * kPageBytes;
  if (facts.rejected_beyond) {
    if (known::kRejectionsStay && on_shortage_.relief != Relief::kNone) {
      return;
    }
    expect(facts.rejected_beyond == rejection_limit_ && rejection_limit_ < limit_ &&
               rejection_limit_ < device_->report().held_bytes() + needed,
           "rejected only beyond that limit");
    return;
  }
  // Memory that the driver once refused to release is released when a request has failed.
  const std::size_t held =
      std::max(device_->report().held_bytes(), ever_failed_ ? held_before : std::size_t{0});
  expect(fault_struck() || budget() < held + needed,
         "out of memory only when new memory cannot help");
  // After a fault some memory may be lost until the driver releases it.
  const bool beyond = known::kSharedPagesBeyondLimit && budget() < held_before;
  const bool is_undisturbed =
      !ever_failed_ && !fault_struck() && traffic_.captures() == 0 && !beyond;
  if (is_undisturbed && groups_.empty()) {
    expect(budget() < bytes_in_use() + needed, "out of memory only when memory is in use");
  }
  if (is_undisturbed && !traffic_.uses_second_device()) {
    const std::size_t in_use =
        device_->report().held_bytes() - device_->store().counts().idle * kPageBytes;
    expect(budget() < in_use + needed, "out of memory only when idle memory is too little");
  }
}

// All memory sleeps or some of it, and wakes in one step or two. No stream gets work meanwhile.
// Limits and headroom may keep sleeping memory from waking.
inline void DeviceModel::operator()(const Nap&) {
  const OnShortage relief = std::exchange(on_shortage_, {Relief::kNone, 0, kBlockAlignment});
  device_->store().set_limit(PageStore::kNoLimit);
  device_->store().set_rejection_limit(PageStore::kNoLimit);
  device_->store().set_headroom(0);
  rejection_limit_before_ = PageStore::kNoLimit;
  const SleepFilter all = all_memory();
  const auto of_default = [](const PoolId& pool) { return pool == kDefaultPool; };
  const SleepFilter some[] = {
      all,
      {[=](const SleepFilter::InUse& block) { return of_default(block.pool); }, of_default},
      {[=](const SleepFilter::InUse& block) { return !of_default(block.pool); },
       std::not_fn(of_default)},
      {[](const SleepFilter::InUse& block) { return address_of(block.ptr) / kPageBytes % 2 == 0; },
       [](const PoolId&) { return false; }, SleepFilter::Free::kToo}};
  guarded([&] {
    const std::size_t held = device_->report().held_bytes();
    const SleepOutcome slept = device_->sleep(
        some[steps_ % std::size(some)], Sleeper::Contents::kKeep, Sleeper::Want::kWhatCanSleep);
    record_.add_sleep(slept);
    if (slept.result == SleepResult::kBusy) {
      expect(traffic_.captures() != 0, "only a capture keeps memory from sleeping");
      return;
    }
    expect(slept.result == SleepResult::kOk, "there is host memory");
    expect(device_->sleep_view().asleep_bytes == slept.bytes, "sleeping memory is counted");
    expect(fault_struck() || device_->report().held_bytes() + slept.bytes <= held,
           "sleeping memory is released");
  });
  if (!live_.empty()) {
    // A block without a tag is not read: it may be asleep. A block that other streams use would stay
    // asleep until their work is over.
    const auto freed = nth_live(steps_);
    if (freed->second.uses.empty() && freed->second.last_work == nullptr) {
      freed->second.tag = 0;
      free(freed);
    }
  }
  device_->report().check_invariants();
  check_step();
  guarded([&] { record_.add_sleep(device_->wake(some[steps_ / 4 % std::size(some)])); });
  if (fault_struck()) {
    FaultyApi::reset();
  }
  device_->report().check_invariants();
  check_step();
  while (device_->sleep_view().asleep_bytes != 0) {
    guarded([&] {
      const SleepOutcome woke = device_->wake(all);
      record_.add_sleep(woke);
      expect(woke.result == SleepResult::kOk || fault_struck(),
             "there is room for sleeping memory");
    });
    if (fault_struck()) {
      check_step();
      FaultyApi::reset();
    }
  }
  expect(device_->sleep_view().saved_bytes == 0, "contents are back");
  device_->store().set_limit(limit_);
  device_->store().set_headroom(world_.headroom * kPageBytes);
  on_shortage_ = relief;
}

}  // namespace ferro::testing
