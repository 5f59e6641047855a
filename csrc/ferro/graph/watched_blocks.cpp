#include "ferro/graph/watched_blocks.h"

#include <algorithm>
#include <utility>

namespace ferro {

void WatchedBlocks::turn_off() {
  on_.store(false);
  forget_freed();
  const MutexLock lock(mutex_);
  known_.clear();
}

WatchedBlocks::Handle WatchedBlocks::watch(const BlockView& block, const PoolId& pool) {
  const MutexLock lock(mutex_);
  std::weak_ptr<WatchedBlock>& slot = known_[block.ptr];
  std::shared_ptr<WatchedBlock> known = slot.lock();
  if (known == nullptr || known->is_freed()) {
    known = std::make_shared<WatchedBlock>(block, pool);
    slot = known;
  }
  return known;
}

void WatchedBlocks::on_free(const BlockView& block, const PoolId& pool, const CallContext& context,
                            bool in_capture) {
  const MutexLock lock(mutex_);
  std::shared_ptr<WatchedBlock> known;
  if (const auto found = known_.find(block.ptr); found != known_.end()) {
    known = found->second.lock();
  }
  if ((known == nullptr || known->is_freed()) && in_capture) {
    known = std::make_shared<WatchedBlock>(block, pool);
  }
  if (known == nullptr || known->is_freed()) {
    return;
  }
  known->free(context, ++frees_);
  if (in_capture) {
    freed_.push_back(std::move(known));
  }
}

void WatchedBlocks::on_restore(const std::vector<BlockView>& freed,
                               const std::vector<BlockView>& live, const PoolId& pool) {
  for (const BlockView& block : freed) {
    on_free(block, pool, nullptr, false);
  }
  const MutexLock lock(mutex_);
  for (const BlockView& block : live) {
    const auto found = known_.find(block.ptr);
    const auto known = found != known_.end() ? found->second.lock() : nullptr;
    if (known != nullptr && known->requested() == block.requested) {
      known->freed_.store(false);
    }
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

std::uint64_t WatchedBlocks::frees() const {
  const MutexLock lock(mutex_);
  return frees_;
}

void WatchedBlocks::forget_freed() {
  std::vector<Handle> freed;  // destroyed without the lock: contexts may run any code
  const MutexLock lock(mutex_);
  forgotten_ += freed_.size();
  freed.swap(freed_);
}

}  // namespace ferro
