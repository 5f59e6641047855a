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

std::string TagNames::name_of(BlockTag tag) const {
  const MutexLock lock(mutex_);
  return tag == 0 ? "" : names_.at(tag - std::size_t{1});
}

TagNames& tag_names() {
  static TagNames* const only = new TagNames;
  return *only;
}

std::vector<TagTotal> TagSums::read() const {
  std::vector<TagTotal> totals;
  for (std::size_t tag = 1; tag < sums_.size(); ++tag) {
    const std::int64_t blocks = sums_[tag].blocks.load(std::memory_order_relaxed);
    if (blocks > 0) {
      totals.push_back(
          {tag_names().name_of(static_cast<BlockTag>(tag)),
           {sums_[tag].bytes.load(std::memory_order_relaxed), static_cast<std::size_t>(blocks)}});
    }
  }
  std::ranges::sort(totals, std::ranges::greater{},
                    [](const TagTotal& total) { return total.total.bytes; });
  return totals;
}

}  // namespace ferro
