// Blocks that graphs use: whether they are still the ones that they were when the graph was captured.
//
// For debugging; nothing is watched, and no function need be called, while it is off. Thread-safe.
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

// One allocation. Its memory may be handed out again once it is freed; this is never that one. Only
// a checkpoint makes it live again.
class WatchedBlock {
 public:
  WatchedBlock(const BlockView& block, const PoolId& pool) : block_(block), pool_(pool) {}

  DevicePtr ptr() const { return block_.ptr; }
  std::size_t size() const { return block_.size; }  // bytes, as handed out
  std::size_t requested() const { return block_.requested; }
  const PoolId& pool() const { return pool_; }
  // Where it was allocated and where it was freed; null where nobody recorded that.
  const CallContext& allocated_at() const { return block_.context; }
  const CallContext& freed_at() const { return freed_at_; }  // once it is freed
  bool is_freed() const { return freed_.load(std::memory_order_acquire); }
  // Its number among all frees of watched blocks, from 1; once it is freed.
  std::uint64_t free_number() const { return free_number_; }
  bool holds(DevicePtr ptr) const { return block_.ptr <= ptr && ptr < block_.ptr + block_.size; }

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
  // Blocks that are held stay as they are from now on.
  void turn_off() FERRO_EXCLUDES(mutex_);

  // `block` is live. The same object as long as it is and somebody holds it.
  Handle watch(const BlockView& block, const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // A live block is about to be freed. `in_capture`: while a capture runs on its device, which may
  // have used it.
  void on_free(const BlockView& block, const PoolId& pool, const CallContext& context,
               bool in_capture) FERRO_EXCLUDES(mutex_);
  // A checkpoint of their pool was restored: freed and made live again, as what they were.
  void on_restore(const std::vector<BlockView>& freed, const std::vector<BlockView>& live,
                  const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // How many were freed while a capture ran, and those since there were `mark`, in order. What was
  // forgotten counts.
  std::size_t freed_in_captures() const FERRO_EXCLUDES(mutex_);
  std::vector<Handle> freed_in_captures_since(std::size_t mark) const FERRO_EXCLUDES(mutex_);
  // How many frees of watched blocks there were.
  std::uint64_t frees() const FERRO_EXCLUDES(mutex_);
  // No capture runs any more.
  void forget_freed() FERRO_EXCLUDES(mutex_);

 private:
  std::atomic<bool> on_{false};
  mutable Mutex mutex_;
  // By address, the last one that somebody watches or watched there, live or freed.
  std::map<DevicePtr, std::weak_ptr<WatchedBlock>> known_ FERRO_GUARDED_BY(mutex_);
  std::vector<Handle> freed_ FERRO_GUARDED_BY(mutex_);
  std::uint64_t frees_ FERRO_GUARDED_BY(mutex_) = 0;
  std::size_t forgotten_ FERRO_GUARDED_BY(mutex_) = 0;
};

}  // namespace ferro
