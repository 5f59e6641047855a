// The blocks that graphs use: whether each is still the allocation that the graph was captured
// with.
//
// For debugging. While it is off, nothing is watched and no function need be called. Thread-safe.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/heap/views.h"
#include "ferro/core/types/observer.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace ferro {

// One allocation, distinct from later ones at the same address. Only a checkpoint makes it live
// again.
class WatchedBlock {
 public:
  WatchedBlock(const BlockView& block, const PoolId& pool) : block_(block), pool_(pool) {}

  DevicePtr ptr() const { return block_.ptr; }
  std::size_t size() const { return block_.size; }  // bytes, as handed out
  std::size_t requested() const { return block_.requested; }
  const PoolId& pool() const { return pool_; }
  BlockTag tag() const { return block_.tag; }
  // Where it was allocated and freed; null if not recorded.
  const CallContext& allocated_at() const { return block_.context; }
  const CallContext& freed_at() const { return freed_at_; }  // once it is freed
  bool is_freed() const { return freed_.load(std::memory_order_acquire); }
  // Its number among all frees of watched blocks, from 1. It is freed.
  std::uint64_t free_number() const { return free_number_; }

 private:
  friend class WatchedBlocks;
  void free(CallContext context, std::uint64_t number) {
    free_number_ = number;
    freed_at_ = std::move(context);
    freed_.store(true, std::memory_order_release);
  }

  const BlockView block_;
  const PoolId pool_;
  CallContext freed_at_;
  std::uint64_t free_number_ = 0;
  std::atomic<bool> freed_{false};
};

class WatchedBlocks {
 public:
  using Handle = std::shared_ptr<const WatchedBlock>;

  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void turn_on() { on_.store(true); }
  // Watched blocks do not change any more.
  void turn_off() FERRO_EXCLUDES(mutex_);

  // `block` is live. Returns the same object while the block is live and the object is held.
  Handle watch(const BlockView& block, const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // Called before a live block is freed. `in_capture`: a capture runs on its device, which may have
  // used it.
  void on_free(const BlockView& block, const PoolId& pool, const CallContext& context,
               bool in_capture) FERRO_EXCLUDES(mutex_);
  // Called after a checkpoint of the pool was restored: `live` blocks are the same allocations
  // again.
  void on_restore(const std::vector<BlockView>& freed, const std::vector<BlockView>& live,
                  const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // The number of blocks that were freed while a capture ran, and the blocks from number `mark` on,
  // in order. Forgotten blocks count.
  std::size_t freed_in_captures() const FERRO_EXCLUDES(mutex_);
  std::vector<Handle> freed_in_captures_since(std::size_t mark) const FERRO_EXCLUDES(mutex_);
  // The number of frees of watched blocks.
  std::uint64_t frees() const FERRO_EXCLUDES(mutex_);
  // Called when no capture runs: forgets the blocks freed in captures.
  void forget_freed() FERRO_EXCLUDES(mutex_);

 private:
  std::atomic<bool> on_{false};
  mutable Mutex mutex_;
  // The last watched block at each address, live or freed.
  std::map<DevicePtr, std::weak_ptr<WatchedBlock>> known_ FERRO_GUARDED_BY(mutex_);
  std::vector<Handle> freed_ FERRO_GUARDED_BY(mutex_);
  std::uint64_t frees_ FERRO_GUARDED_BY(mutex_) = 0;
  std::size_t forgotten_ FERRO_GUARDED_BY(mutex_) = 0;
};

}  // namespace ferro
