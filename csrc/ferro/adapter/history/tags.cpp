#include "ferro/adapter/history/tags.h"

#include <algorithm>
#include <functional>

namespace ferro {

BlockTag TagNames::tag_of(std::string_view name) {
  if (name.empty()) {
    return 0;
  }
  const MutexLock lock(mutex_);
  if (const auto found = tags_.find(name); found != tags_.end()) {
    return found->second;
  }
  if (names_.size() == kMaxTags) {
    return kMaxTags;
  }
  names_.emplace_back(names_.size() + 1 < kMaxTags ? name : "(more tags)");
  const auto tag = static_cast<BlockTag>(names_.size());
  tags_.emplace(names_.back(), tag);
  return tag;
}

BlockTag TagNames::find(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = tags_.find(name);
  return found == tags_.end() ? 0 : found->second;
}

std::string TagNames::name_of(BlockTag tag) const {
  const MutexLock lock(mutex_);
  return tag == 0 ? "" : names_.at(tag - std::size_t{1});
}

std::vector<std::string> TagNames::all() const {
  const MutexLock lock(mutex_);
  return {names_.begin(), names_.end()};
}

bool TagNames::any() const {
  const MutexLock lock(mutex_);
  return !names_.empty();
}

TagNames& tag_names() {
  static TagNames* const only = new TagNames;
  return *only;
}

std::optional<std::size_t> TagSums::allocate_within(BlockTag tag, std::size_t bytes,
                                                    std::size_t limit) {
  Sum& sum = sums_.at(tag);
  std::size_t live = sum.bytes.load(std::memory_order_relaxed);
  do {
    if (live > limit || bytes > limit - live) {
      return std::nullopt;
    }
  } while (!sum.bytes.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
  sum.blocks.fetch_add(1, std::memory_order_relaxed);
  raise(sum.peak, live + bytes);
  return live + bytes;
}

TagTotal TagSums::read_one(BlockTag tag) const {
  const Sum& sum = sums_.at(tag);
  // Another thread may be between its two changes.
  const std::int64_t blocks = std::max<std::int64_t>(sum.blocks.load(std::memory_order_relaxed), 0);
  const std::size_t bytes = sum.bytes.load(std::memory_order_relaxed);
  return {.tag = tag,
          .name = tag_names().name_of(tag),
          .total = {bytes, static_cast<std::size_t>(blocks)},
          .peak = std::max(bytes, sum.peak.load(std::memory_order_relaxed))};
}

std::vector<TagTotal> TagSums::read(Tags which) const {
  std::vector<TagTotal> totals;
  for (std::size_t tag = 1; tag < sums_.size(); ++tag) {
    if (sums_[tag].blocks.load(std::memory_order_relaxed) > 0 ||
        (which == Tags::kAll && sums_[tag].peak.load(std::memory_order_relaxed) != 0)) {
      totals.push_back(read_one(static_cast<BlockTag>(tag)));
    }
  }
  std::ranges::sort(totals, std::ranges::greater{},
                    [](const TagTotal& total) { return total.total.bytes; });
  return totals;
}

void TagSums::reset_peaks() {
  for (Sum& sum : sums_) {
    sum.peak.store(sum.bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // The store may have hidden a request that came after the load.
    raise(sum.peak, sum.bytes.load(std::memory_order_relaxed));
  }
}

}  // namespace ferro
