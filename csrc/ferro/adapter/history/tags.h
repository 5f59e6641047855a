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
  std::string name_of(BlockTag tag) const FERRO_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<std::string> names_ FERRO_GUARDED_BY(mutex_);  // never move: keys point into them
  std::unordered_map<std::string_view, BlockTag> tags_ FERRO_GUARDED_BY(mutex_);
};

// Never destroyed, because memory is freed until the process ends.
TagNames& tag_names();

struct TagTotal {
  std::string name;
  BlockTotal total;
};

// The sums of live blocks on one device by tag. Thread-safe, lock-free; reads give recent values.
class TagSums {
 public:
  void on_allocate(BlockTag tag, std::size_t bytes) { change(tag, bytes, 1); }
  void on_free(BlockTag tag, std::size_t bytes) { change(tag, std::size_t{0} - bytes, -1); }
  // Tags with live blocks, the largest first.
  std::vector<TagTotal> read() const;

 private:
  struct Sum {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::int64_t> blocks{0};
  };

  void change(BlockTag tag, std::size_t bytes, std::int64_t blocks) {
    Sum& sum = sums_.at(tag);
    sum.bytes.fetch_add(bytes, std::memory_order_relaxed);
    sum.blocks.fetch_add(blocks, std::memory_order_relaxed);
  }

  std::array<Sum, TagNames::kMaxTags + 1> sums_;  // by number; number 0 stays empty
};

}  // namespace ferro
