// Limits of live bytes by tag. They apply to each device by itself.
//
// A request is checked twice: before it (CudaAllocator), so that a request beyond the limit takes no
// memory, and when its block is counted, atomically with the sum. So the live bytes of a tag never
// exceed its hard limit, and a request fails only while they leave no room for it.
#pragma once

#include "ferro/adapter/history/tags.h"
#include "ferro/base/mutex.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>

namespace ferro {

struct TagLimit {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  // Called with the live bytes after a request raised them above `soft`. Must not throw.
  using OnSoft = std::function<void(std::size_t live_bytes)>;

  std::size_t soft = kNone;
  std::size_t hard = kNone;
  OnSoft on_soft;
};

// Thread-safe; `any`, `soft` and `hard` are lock-free.
class TagLimits {
 public:
  // Replaces the limits of the tag.
  void set(BlockTag tag, TagLimit limit) FERRO_EXCLUDES(mutex_);
  // Whether a tag has ever had limits.
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::size_t soft(BlockTag tag) const { return soft_.at(tag).load(std::memory_order_relaxed); }
  std::size_t hard(BlockTag tag) const { return hard_.at(tag).load(std::memory_order_relaxed); }
  TagLimit::OnSoft on_soft(BlockTag tag) const FERRO_EXCLUDES(mutex_);

  TagLimits();

 private:
  using Bytes = std::array<std::atomic<std::size_t>, TagNames::kMaxTags + 1>;  // by number

  Bytes soft_;
  Bytes hard_;
  std::atomic<bool> any_{false};
  mutable Mutex mutex_;
  std::map<BlockTag, TagLimit::OnSoft> on_soft_ FERRO_GUARDED_BY(mutex_);
};

// Never destroyed, because memory is requested until the process ends.
TagLimits& tag_limits();

// A request of this thread to which limits apply while the object exists. A callback within the
// request may make another one, with an object of its own.
class LimitedRequest {
 public:
  LimitedRequest();
  ~LimitedRequest();
  LimitedRequest(const LimitedRequest&) = delete;
  LimitedRequest& operator=(const LimitedRequest&) = delete;

  // The innermost of this thread; null for none.
  static LimitedRequest* of_thread();

  // Adds the block to `sums`. False, and nothing is added, if that would exceed the hard limit.
  bool count(TagSums& sums, BlockTag tag, std::size_t bytes);
  // The tag for which `count` returned false; else 0.
  BlockTag refused() const { return refused_; }
  // Runs the callback if the block raised its tag above the soft limit. The caller holds no lock. If
  // the thread holds one nevertheless, because the request was made within a climb, the callback
  // waits for the end of the outer request. What a callback itself requests causes no further one.
  void run_callback();

 private:
  LimitedRequest* const outer_;
  BlockTag refused_ = 0;
  BlockTag crossed_ = 0;
  std::size_t live_bytes_ = 0;  // of `crossed_`, when it did
};

}  // namespace ferro
