// Live memory by tag, the program's name for memory that it requests. The tag of a thread is
// PyTorch's user metadata (`torch._C._cuda_setMemoryMetadata`).
#pragma once

#include "ferro/adapter/history/call_sites.h"
#include "ferro/base/mutex.h"
#include "ferro/core/types/observer.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ferro {

// The numbers of the process's tags. Thread-safe; a tag keeps its number.
class TagNames {
 public:
  // Further tags share the last number, named "(more tags)".
  static constexpr BlockTag kMaxTags = 1023;

  // 0 for an empty name.
  BlockTag tag_of(std::string_view name) FERRO_EXCLUDES(mutex_);
  // 0 for a name that has no number yet.
  BlockTag find(std::string_view name) const FERRO_EXCLUDES(mutex_);
  std::string name_of(BlockTag tag) const FERRO_EXCLUDES(mutex_);
  std::vector<std::string> all() const FERRO_EXCLUDES(mutex_);
  // Whether there is one.
  bool any() const FERRO_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<std::string> names_ FERRO_GUARDED_BY(mutex_);  // never move: keys point into them
  std::unordered_map<std::string_view, BlockTag> tags_ FERRO_GUARDED_BY(mutex_);
};

// Never destroyed, because memory is freed until the process ends.
TagNames& tag_names();

struct TagTotal {
  BlockTag tag = 0;
  std::string name;
  BlockTotal total;
  std::size_t peak = 0;  // of `total.bytes`, since the last reset
};

// The sums of live blocks on one device by tag. Thread-safe, lock-free; reads give recent values.
// A peak is exact: the maximum of all values of the sum since the last reset.
class TagSums {
 public:
  void on_allocate(BlockTag tag, std::size_t bytes) {
    Sum& sum = sums_.at(tag);
    sum.blocks.fetch_add(1, std::memory_order_relaxed);
    raise(sum.peak, sum.bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  }
  // The same unless the sum would exceed `limit`: then nothing changes, and the result is empty.
  // Else it is the new sum.
  std::optional<std::size_t> allocate_within(BlockTag tag, std::size_t bytes, std::size_t limit);
  // Whether `bytes` more would exceed it.
  bool exceeds(BlockTag tag, std::size_t bytes, std::size_t limit) const {
    const std::size_t live = sums_.at(tag).bytes.load(std::memory_order_relaxed);
    return live > limit || bytes > limit - live;
  }
  void on_free(BlockTag tag, std::size_t bytes) {
    Sum& sum = sums_.at(tag);
    sum.bytes.fetch_sub(bytes, std::memory_order_relaxed);
    sum.blocks.fetch_sub(1, std::memory_order_relaxed);
  }
  // Tags with live blocks, or all that had some since the last reset; the largest first.
  enum class Tags : std::uint8_t { kLive, kAll };
  std::vector<TagTotal> read(Tags which = Tags::kLive) const;
  TagTotal read_one(BlockTag tag) const;
  void reset_peaks();

 private:
  struct Sum {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::size_t> peak{0};
    std::atomic<std::int64_t> blocks{0};
  };

  static void raise(std::atomic<std::size_t>& peak, std::size_t bytes) {
    std::size_t known = peak.load(std::memory_order_relaxed);
    while (known < bytes && !peak.compare_exchange_weak(known, bytes, std::memory_order_relaxed)) {
    }
  }

  std::array<Sum, TagNames::kMaxTags + 1> sums_;  // by number; number 0 stays empty
};

}  // namespace ferro
