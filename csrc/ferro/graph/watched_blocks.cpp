#include "ferro/graph/watched_blocks.h"

#include <algorithm>
#include <utility>

namespace ferro {

void WatchedBlocks::turn_off() {
  on_.store(false);
  forget_freed();
  const MutexLock lock(mutex_);
  live_.clear();
}

WatchedBlocks::Handle WatchedBlocks::watch(const BlockView& block, const PoolId& pool) {
  const MutexLock lock(mutex_);
  std::weak_ptr<WatchedBlock>& slot = live_[block.ptr];
  std::shared_ptr<WatchedBlock> known = slot.lock();
  // Checkpoints free and allocate without a word.
  if (known == nullptr || known->requested() != block.requested ||
      known->allocated_at() != block.context) {
    known = std::make_shared<WatchedBlock>(block, pool);
    slot = known;
  }
  return known;
}

void WatchedBlocks::on_free(const BlockView& block, const PoolId& pool, const CallContext& context,
                            bool in_capture) {
  const MutexLock lock(mutex_);
  std::shared_ptr<WatchedBlock> known;
  if (const auto found = live_.find(block.ptr); found != live_.end()) {
    known = found->second.lock();
    live_.erase(found);
  }
  if (known == nullptr && in_capture) {
    known = std::make_shared<WatchedBlock>(block, pool);
  }
  if (known == nullptr) {
    return;
  }
  known->free(context);
  if (in_capture) {
    freed_.push_back(std::move(known));
  }
}

std::size_t WatchedBlocks::freed_in_captures() const {
  const MutexLock lock(mutex_);
  return forgotten_ + freed_.size();
}

std::vector<WatchedBlocks::Handle> WatchedBlocks::freed_in_captures_since(std::size_t mark) const {
  const MutexLock lock(mutex_);
  const std::size_t first = std::max(mark, forgotten_) - forgotten_;
  return {freed_.begin() + static_cast<std::ptrdiff_t>(std::min(first, freed_.size())),
          freed_.end()};
}

void WatchedBlocks::forget_freed() {
  std::vector<Handle> freed;  // goes without the lock, as contexts may run any code
  const MutexLock lock(mutex_);
  forgotten_ += freed_.size();
  freed.swap(freed_);
}

}  // namespace ferro
