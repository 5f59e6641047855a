// The parts of memory that hold something: contents, an origin or a certainty (`contents.h`).
//
// `Held` has `==`. Where `held.is_positional()`, each byte of the part has its own offset in what is
// held, otherwise all its bytes are alike.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
// Invariants: ranges are not empty and do not overlap; each holds one copy of `Held`; neighbours of
// which one continues the other are one range.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace ferro::sim {

template <typename Held>
class HeldRanges {
 public:
  HeldRanges() = default;
  HeldRanges(const HeldRanges&) = delete;
  HeldRanges& operator=(const HeldRanges&) = delete;

  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  // Replaces what the range holds. Merges with the ranges before and behind it where one continues
  // the other.
  void set(std::uint64_t begin, std::size_t bytes, Held held, std::size_t offset);
  void remove(std::uint64_t begin, std::size_t bytes);
  // Makes [to, to + bytes) hold what [from, from + bytes) of `source` does, which may be this object.
  void copy(std::uint64_t to, const HeldRanges& source, std::uint64_t from, std::size_t bytes);
  // Is all of the range in one that holds this?
  bool holds(std::uint64_t begin, std::size_t bytes, const Held& held) const {
    const Place at = first_ending_after(begin);
    return !is_end(at) && range(at).begin <= begin && range(at).end >= begin + bytes &&
           range(at).held == held;
  }
  // Does any byte of the range hold something?
  bool holds_any(std::uint64_t begin, std::size_t bytes) const {
    const Place at = first_ending_after(begin);
    return !is_end(at) && range(at).begin < begin + bytes;
  }

  // Calls `visit(begin, bytes, held, offset)` for the whole range that contains this place, if there
  // is one.
  template <typename Visit>
  void visit_range_at(std::uint64_t place, const Visit& visit) const {
    const Place at = first_ending_after(place);
    if (!is_end(at) && range(at).begin <= place) {
      const Range& there = range(at);
      visit(there.begin, static_cast<std::size_t>(there.end - there.begin), there.held,
            there.offset);
    }
  }
  // Calls `visit(begin, bytes, held, offset)` for each part of the range that holds something, in
  // order, until it returns false.
  template <typename Visit>
  void for_each_held(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    const std::uint64_t end = begin + bytes;
    for (Place at = first_ending_after(begin); !is_end(at) && range(at).begin < end;
         at = next(at)) {
      const Range& there = range(at);
      const std::uint64_t from = std::max(there.begin, begin);
      if (!visit(from, static_cast<std::size_t>(std::min(there.end, end) - from), there.held,
                 there.offset_at(from))) {
        return;
      }
    }
  }
  // Calls `held(begin, bytes, held, offset)` for each of these parts and `plain(begin, bytes)` for
  // each other part, in order. Neither changes the ranges. Ends before the part that holds something
  // after `most` of these.
  template <typename OfHeld, typename Plain>
  void for_each_part(std::uint64_t begin, std::size_t bytes, const OfHeld& held, const Plain& plain,
                     std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    std::uint64_t end = begin + bytes;
    std::uint64_t done = begin;
    for_each_held(begin, bytes,
                  [&](std::uint64_t from, std::size_t part, const Held& there, std::size_t offset) {
                    if (most-- == 0) {
                      end = from;
                      return false;
                    }
                    if (from > done) {
                      plain(done, static_cast<std::size_t>(from - done));
                    }
                    done = from + part;
                    held(from, part, there, offset);
                    return true;
                  });
    if (done < end) {
      plain(done, static_cast<std::size_t>(end - done));
    }
  }

 private:
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Held held{};
    std::size_t offset = 0;  // of the first byte in what it holds

    std::size_t offset_at(std::uint64_t at) const {
      return offset + static_cast<std::size_t>(at - begin);
    }
    bool is_continued_by(const Range& next) const {
      return end == next.begin && held == next.held &&
             (!held.is_positional() || offset_at(end) == next.offset);
    }
  };
  // Up to this number of ranges lie in one array: a search touches few lines of memory, and a range
  // costs little more than itself.
  static constexpr std::size_t kMostInLeaf = 64;
  using Leaf = std::vector<Range>;  // in order, not empty
  // The first key is 0. Each other one is at most the begin of its leaf's first range, and more than
  // the begins in the leaves before.
  using Leaves = std::map<std::uint64_t, Leaf>;
  // A range, or the end of the last leaf. Without leaves the index is 0.
  struct Place {
    typename Leaves::const_iterator leaf;
    std::size_t index;
  };

  static const Range& range(const Place& at) { return at.leaf->second[at.index]; }
  bool is_end(const Place& at) const {
    return at.leaf == leaves_.end() || at.index == at.leaf->second.size();
  }
  Place next(Place at) const {
    if (++at.index == at.leaf->second.size() && std::next(at.leaf) != leaves_.end()) {
      return {std::next(at.leaf), 0};
    }
    return at;
  }
  bool has_before(const Place& at) const { return at.index > 0 || at.leaf != leaves_.begin(); }
  static Place before(const Place& at) {
    const auto leaf = at.index > 0 ? at.leaf : std::prev(at.leaf);
    return {leaf, (at.index > 0 ? at.index : leaf->second.size()) - 1};
  }
  // The leaf whose key is the last one up to `begin`. There are leaves.
  typename Leaves::const_iterator leaf_of(std::uint64_t begin) const {
    if (begin < near_begin_ || begin >= near_end_) {
      const auto behind = leaves_.upper_bound(begin);
      near_ = std::prev(behind);
      near_begin_ = near_->first;
      near_end_ = behind == leaves_.end() ? kNoEnd : behind->first;
    }
    return near_;
  }
  // The key of the next leaf.
  std::uint64_t end_of(typename Leaves::const_iterator leaf) const {
    if (near_begin_ < near_end_ && near_ == leaf) {
      return near_end_;
    }
    const auto behind = std::next(leaf);
    return behind == leaves_.end() ? kNoEnd : behind->first;
  }
  // Before a change of the leaves or their keys.
  void forget_near() {
    near_begin_ = near_end_ = 0;
    ++changes_;
  }
  // The number of ranges that begin at or before `begin`.
  static std::size_t count_behind(const Leaf& ranges, std::uint64_t begin);
  static bool are_behind(const Leaf& ranges, std::size_t count, std::uint64_t begin) {
    return count <= ranges.size() && (count == 0 || ranges[count - 1].begin <= begin) &&
           (count == ranges.size() || ranges[count].begin > begin);
  }
  // The first range that ends after `begin`.
  Place first_ending_after(std::uint64_t begin) const {
    return begin >= last_begin_ && begin < last_end_ ? last_ : search(begin);
  }
  Place search(std::uint64_t begin) const;

  // Replaces what ranges have in [begin, end) by `fresh`, or by nothing.
  void put(std::uint64_t begin, std::uint64_t end, Range* fresh);
  // The same, given the first range that ends after `begin`. Apart, because it is long and seldom used.
  void put_parts(Place first, std::uint64_t begin, std::uint64_t end, Range* fresh);
  // Does the range before this place continue in `fresh`, and `fresh` in the range at this place?
  bool continues_before(const Place& at, const Range& fresh) const {
    return has_before(at) && range(before(at)).is_continued_by(fresh);
  }
  bool goes_on_at(const Place& at, const Range& fresh) const {
    return !is_end(at) && fresh.is_continued_by(range(at));
  }
  // Replaces the ranges [first, last); returns the place of the first new one, if there is one. What
  // it takes out stays in `by` or is in `dropped`, to be destroyed when the ranges are consistent.
  Place replace(Place first, const Place& last, std::span<Range> by, std::vector<Range>& dropped);
  void take_out(Leaf& leaf, std::size_t begin, std::size_t end, std::vector<Range>& dropped);
  // Moves the ranges from `at` on to a new leaf, and `place` with them.
  void split(typename Leaves::iterator leaf, std::size_t at, Place& place);
  void erase(typename Leaves::iterator leaf);
  void set_key(typename Leaves::iterator leaf, std::uint64_t key) {
    forget_near();
    auto node = leaves_.extract(leaf);
    node.key() = key;
    leaves_.insert(std::move(node));
  }

  Leaves leaves_;
  std::size_t count_ = 0;
  // The last range that was set, and its addresses; none if these are empty. Results are soon inputs.
  Place last_{leaves_.cend(), 0};
  std::uint64_t last_begin_ = 0;
  std::uint64_t last_end_ = 0;
  // The last leaf that was searched for, and the addresses that belong to it; none if that is empty.
  static constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();
  mutable typename Leaves::const_iterator near_{leaves_.cend()};
  mutable std::uint64_t near_begin_ = 0;
  mutable std::uint64_t near_end_ = 0;
  // What searches found: operators use the same tensors again. The leaf of a hint is the right one
  // until the leaves change, and the number of ranges is checked.
  struct Hint {
    std::uint64_t begin = 0;
    std::uint64_t changes = 0;  // of the leaves before; 0: there is no hint
    typename Leaves::const_iterator leaf{};
    std::size_t behind = 0;
  };
  static constexpr std::size_t kHints = 32;
  static std::size_t hint_of(std::uint64_t begin) {
    return static_cast<std::size_t>((begin >> 9) ^ (begin >> 17)) % kHints;
  }
  std::uint64_t changes_ = 1;  // of the leaves
  mutable std::array<Hint, kHints> hints_{};
};

template <typename Held>
typename HeldRanges<Held>::Place HeldRanges<Held>::search(std::uint64_t begin) const {
  if (leaves_.empty()) {
    return {leaves_.end(), 0};
  }
  Hint& hint = hints_[hint_of(begin)];
  const bool is_hinted = hint.begin == begin && hint.changes == changes_;
  const auto leaf = is_hinted ? hint.leaf : leaf_of(begin);
  const Leaf& ranges = leaf->second;
  std::size_t behind = hint.behind;
  if (!is_hinted || !are_behind(ranges, behind, begin)) {
    behind = count_behind(ranges, begin);
    hint = {begin, changes_, leaf, behind};
  }
  const Place found{leaf, behind};
  if (has_before(found) && range(before(found)).end > begin) {
    return before(found);
  }
  const bool is_in_next = behind == ranges.size() && end_of(leaf) != kNoEnd;
  return is_in_next ? Place{std::next(leaf), 0} : found;
}

template <typename Held>
std::size_t HeldRanges<Held>::count_behind(const Leaf& ranges, std::uint64_t begin) {
  std::size_t behind = 0;
  for (std::size_t rest = ranges.size(); rest > 0;) {
    const std::size_t step = (rest + 1) / 2;
    behind += ranges[behind + step - 1].begin <= begin ? step : 0;  // without a branch
    rest -= step;
  }
  return behind;
}

template <typename Held>
void HeldRanges<Held>::set(std::uint64_t begin, std::size_t bytes, Held held, std::size_t offset) {
  if (bytes > 0) {
    Range fresh{begin, begin + bytes, std::move(held), offset};
    put(begin, begin + bytes, &fresh);
  }
}

template <typename Held>
void HeldRanges<Held>::remove(std::uint64_t begin, std::size_t bytes) {
  if (bytes > 0) {
    put(begin, begin + bytes, nullptr);
  }
}

template <typename Held>
void HeldRanges<Held>::put(std::uint64_t begin, std::uint64_t end, Range* fresh) {
  const Place first = first_ending_after(begin);
  if (is_end(first) || range(first).begin >= end) {
    if (fresh == nullptr) {
      return;
    }
  } else if (fresh != nullptr && range(first).begin == begin && range(first).end == end &&
             !continues_before(first, *fresh) && !goes_on_at(next(first), *fresh)) {
    // Most often an operator gives its result the memory of an earlier one.
    std::swap(leaves_.erase(first.leaf, first.leaf)->second[first.index], *fresh);
    last_ = first;
    last_begin_ = begin;
    last_end_ = end;
    return;
  }
  put_parts(first, begin, end, fresh);
}

template <typename Held>
[[gnu::noinline]] void HeldRanges<Held>::put_parts(Place first, std::uint64_t begin,
                                                   std::uint64_t end, Range* fresh) {
  Place last = first;
  const Range* front = nullptr;  // of the ranges that meet [begin, end)
  const Range* back = nullptr;
  for (; !is_end(last) && range(last).begin < end; last = next(last)) {
    back = &range(last);
    front = front == nullptr ? back : front;
  }
  const bool is_within = fresh != nullptr && front != nullptr && front->begin <= begin &&
                         front->end >= end && front->held == fresh->held;
  if (is_within && (!fresh->held.is_positional() || front->offset_at(begin) == fresh->offset)) {
    return;
  }
  last_begin_ = last_end_ = 0;
  const bool continues = fresh != nullptr && continues_before(first, *fresh);
  const bool goes_on = fresh != nullptr && goes_on_at(last, *fresh);
  Range parts[3];
  std::size_t count = 0;
  std::size_t own = 0;  // the part with what is set
  const auto add = [&](Range part) {
    if (count > 0 && parts[count - 1].is_continued_by(part)) {
      parts[count - 1].end = part.end;
    } else {
      parts[count++] = std::move(part);
    }
  };
  if (front != nullptr && front->begin < begin) {
    add({front->begin, begin, front->held, front->offset});
  } else if (continues) {
    first = before(first);
    add(range(first));
  }
  if (fresh != nullptr) {
    add(std::move(*fresh));
    own = count - 1;
  }
  if (back != nullptr && back->end > end) {
    add({end, back->end, back->held, back->offset_at(end)});
  } else if (goes_on) {
    add(range(last));
    last = next(last);
  }
  std::vector<Range> dropped;
  last_ = replace(first, last, std::span(parts, count), dropped);
  last_.index += own;
  if (fresh != nullptr && last_.index < last_.leaf->second.size()) {
    last_begin_ = range(last_).begin;
    last_end_ = range(last_).end;
  }
}

template <typename Held>
typename HeldRanges<Held>::Place HeldRanges<Held>::replace(Place first, const Place& last,
                                                           std::span<Range> by,
                                                           std::vector<Range>& dropped) {
  if (leaves_.empty()) {
    forget_near();
    leaves_.emplace(0, Leaf());
    first = {leaves_.begin(), 0};
  } else if (first.index == 0 && !by.empty() && by.front().begin < first.leaf->first) {
    first = {std::prev(first.leaf), std::prev(first.leaf)->second.size()};
  }
  const auto leaf = leaves_.erase(first.leaf, first.leaf);  // the same one, to be changed
  Leaf& ranges = leaf->second;
  std::size_t end = last.leaf == leaf ? last.index : ranges.size();
  while (last.leaf != leaf && last.leaf != leaves_.end()) {
    const auto behind = std::next(leaf);
    const bool is_last = behind == last.leaf;
    take_out(behind->second, 0, is_last ? last.index : behind->second.size(), dropped);
    if (behind->second.empty()) {
      forget_near();
      leaves_.erase(behind);
    }
    if (is_last) {
      break;
    }
  }
  const std::size_t swapped = std::min(end - first.index, by.size());
  std::swap_ranges(by.begin(), by.begin() + static_cast<std::ptrdiff_t>(swapped),
                   ranges.begin() + static_cast<std::ptrdiff_t>(first.index));
  take_out(ranges, first.index + swapped, end, dropped);
  end = first.index + by.size();
  const bool ends_leaf = end > ranges.size();
  ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(first.index + swapped),
                std::make_move_iterator(by.begin() + static_cast<std::ptrdiff_t>(swapped)),
                std::make_move_iterator(by.end()));
  count_ += by.size() - swapped;
  if (ranges.empty()) {
    erase(leaf);
    return {leaves_.end(), 0};
  }
  if (end == ranges.size() && end_of(leaf) <= ranges.back().begin) {
    const auto behind = std::next(leaf);
    set_key(behind, behind->second.front().begin);
  }
  if (ranges.size() > kMostInLeaf) {
    // Leaves that are filled in order become full.
    split(leaf, ends_leaf ? kMostInLeaf : ranges.size() / 2, first);
  }
  return first;
}

template <typename Held>
void HeldRanges<Held>::take_out(Leaf& leaf, std::size_t begin, std::size_t end,
                                std::vector<Range>& dropped) {
  if (begin == end) {
    return;
  }
  const auto first = leaf.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = leaf.begin() + static_cast<std::ptrdiff_t>(end);
  if constexpr (!std::is_trivially_destructible_v<Held>) {
    dropped.insert(dropped.end(), std::make_move_iterator(first), std::make_move_iterator(last));
  }
  leaf.erase(first, last);
  count_ -= end - begin;
}

template <typename Held>
void HeldRanges<Held>::split(typename Leaves::iterator leaf, std::size_t at, Place& place) {
  Leaf& ranges = leaf->second;
  const auto middle = ranges.begin() + static_cast<std::ptrdiff_t>(at);
  Leaf second;
  second.reserve(kMostInLeaf + 1);
  second.assign(std::make_move_iterator(middle), std::make_move_iterator(ranges.end()));
  ranges.erase(middle, ranges.end());
  const std::uint64_t key = second.front().begin;
  forget_near();
  const auto made = leaves_.emplace_hint(std::next(leaf), key, std::move(second));
  if (place.index >= at) {
    place = {made, place.index - at};
  }
}

template <typename Held>
void HeldRanges<Held>::erase(typename Leaves::iterator leaf) {
  forget_near();
  const auto behind = leaves_.erase(leaf);
  if (behind != leaves_.end() && behind == leaves_.begin()) {
    set_key(behind, 0);
  }
}

template <typename Held>
void HeldRanges<Held>::copy(std::uint64_t to, const HeldRanges& source, std::uint64_t from,
                            std::size_t bytes) {
  std::vector<Range> parts;
  source.for_each_held(
      from, bytes,
      [&](std::uint64_t begin, std::size_t part, const Held& held, std::size_t offset) {
        parts.push_back({begin, begin + part, held, offset});
        return true;
      });
  remove(to, bytes);
  for (Range& part : parts) {
    set(to + (part.begin - from), static_cast<std::size_t>(part.end - part.begin),
        std::move(part.held), part.offset);
  }
}

}  // namespace ferro::sim
