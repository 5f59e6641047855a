// The model's pools: held and released, and their checkpoints.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

inline void DeviceModel::hold(const PoolId& pool) {
  device_->pools().hold(pool);
  ++holds_[pool];
}

inline void DeviceModel::operator()(const ReleasePool& i) {
  const PoolId pool = private_pool(i.pool);
  const int holds = holds_[pool];
  if (running_.contains(pool) && holds == 1) {
    return;  // the capture holds it
  }
  expect(release(pool) == (holds > 0), "a pool is released as often as it was held");
}

inline bool DeviceModel::release(const PoolId& pool) {
  if (!device_->pools().release(pool)) {
    return false;
  }
  if (--holds_[pool] == 0) {
    std::erase_if(graphs_, [&](const Graph& graph) { return graph.pool == pool; });
    captured_.erase(pool);
    graph_memory_->on_last_release(pool);
  }
  return true;
}

inline void DeviceModel::operator()(const SetUseOnOom& i) {
  const PoolId pool = private_pool(i.pool);
  if (device_->pools().use_count(pool) >= 0) {
    device_->pools().set_use_on_oom(pool, i.use);
  }
}

inline std::vector<std::pair<std::uint64_t, std::size_t>> DeviceModel::live_in(
    const PoolId& pool) const {
  std::vector<std::pair<std::uint64_t, std::size_t>> blocks;
  for (const auto& [address, block] : live_) {
    if (block.pool == pool) {
      blocks.emplace_back(address, block.size);
    }
  }
  return blocks;
}

inline void DeviceModel::operator()(const TakeCheckpoint& i) {
  const PoolId pool = private_pool(i.pool);
  const bool borrows = running_.contains(pool) && running_.at(pool).of_member;
  CheckpointError error = CheckpointError::kNone;
  guarded([&] {
    PoolCheckpoint taken;
    error = take_checkpoint(*graph_memory_, pool, &taken);
    expect((error == CheckpointError::kBorrows) == borrows || unsettled_.contains(pool),
           "no checkpoint includes borrowed pages");
    if (error == CheckpointError::kNone) {
      expect(holds_[pool] > 0, "of a pool that is held");
      checkpoint_ = taken;
      in_checkpoint_ = live_in(pool);
    }
  });
  if (error != CheckpointError::kBorrows) {
    excluded_.insert(pool);
  }
}

inline void DeviceModel::operator()(const RestoreCheckpoint&) {
  if (!checkpoint_ || running_.contains(checkpoint_->pool) || !settle_uses(checkpoint_->pool)) {
    return;
  }
  CheckpointChange change;
  CheckpointError error = CheckpointError::kPendingFrees;
  guarded([&] { error = restore_checkpoint(*graph_memory_, *checkpoint_, &change); });
  if (error != CheckpointError::kNone) {
    expect(change.freed.empty() && change.allocated.empty(), "an error changes nothing");
    return;
  }
  expect(holds_[checkpoint_->pool] > 0, "of a pool that is held");
  std::map<std::uint64_t, Block> before;
  for (const BlockView& view : change.freed) {
    const auto found = live_.find(address_of(view.ptr));
    expect(found != live_.end() && found->second.size == view.size, "a freed block was live");
    before.insert(live_.extract(found));
  }
  for (const BlockView& view : change.allocated) {
    const auto same = before.find(address_of(view.ptr));
    if (same != before.end() && same->second.size == view.size) {
      same->second.uses.clear();
      live_.insert(before.extract(same));
    } else {
      become_live(view.ptr, view.size, checkpoint_->pool,
                  number_of(heap_of(address_of(view.ptr)).stream()));
    }
  }
  expect(live_in(checkpoint_->pool) == in_checkpoint_, "exactly the recorded blocks are live");
}

}  // namespace ferro::testing
