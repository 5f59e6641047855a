// The parts of memory that hold something: contents, an origin or a certainty (`contents.h`).
//
// `Held` has `==`. Where `held.is_positional()`, each byte of the part has its own offset in what is
// held, otherwise all its bytes are alike.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
// Invariants: ranges are not empty and do not overlap; each holds one copy of `Held`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace ferro::sim {

template <typename Held>
class HeldRanges {
 public:
  struct Range {
    std::uint64_t end = 0;
    Held held{};
    std::size_t offset = 0;  // of the range's first byte in what it holds
  };

  HeldRanges() = default;
  HeldRanges(const HeldRanges&) = delete;
  HeldRanges& operator=(const HeldRanges&) = delete;

  bool empty() const { return ranges_.empty(); }
  std::size_t count() const { return ranges_.size(); }
  // Replaces what the range holds. Merges with the ranges before and behind it where one continues
  // the other.
  void set(std::uint64_t begin, std::size_t bytes, Held held, std::size_t offset);
  void remove(std::uint64_t begin, std::size_t bytes);
  // Makes [to, to + bytes) hold what [from, from + bytes) of `source` does, which may be this object.
  void copy(std::uint64_t to, const HeldRanges& source, std::uint64_t from, std::size_t bytes);
  // Is all of the range in one that holds this?
  bool holds(std::uint64_t begin, std::size_t bytes, const Held& held) const {
    const auto at = first_ending_after(begin);
    return at != ranges_.end() && at->first <= begin && at->second.end >= begin + bytes &&
           at->second.held == held;
  }

  // Calls `visit(begin, bytes, held, offset)` for each part of the range that holds something, in
  // order, until it returns false.
  template <typename Visit>
  void for_each_held(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    const std::uint64_t end = begin + bytes;
    for (auto at = first_ending_after(begin); at != ranges_.end() && at->first < end; ++at) {
      const std::uint64_t from = std::max(at->first, begin);
      if (!visit(from, static_cast<std::size_t>(std::min(at->second.end, end) - from),
                 at->second.held, at->second.offset + static_cast<std::size_t>(from - at->first))) {
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
  using Ranges = std::map<std::uint64_t, Range>;
  using Iterator = typename Ranges::iterator;

  // The first range that ends after `begin`.
  typename Ranges::const_iterator first_ending_after(std::uint64_t begin) const;
  static bool continues(const typename Ranges::value_type& range, std::uint64_t at,
                        const Held& held, std::size_t offset) {
    return range.second.held == held &&
           (!held.is_positional() ||
            range.second.offset + static_cast<std::size_t>(at - range.first) == offset);
  }
  Iterator cut_end(Iterator at, std::uint64_t begin, std::uint64_t end);
  Iterator remove_from(Iterator at, std::uint64_t end);
  void merge(Iterator at, Iterator next);

  Ranges ranges_;  // by begin
  // The last range that was found or set, because the same memory is used again and again.
  mutable typename Ranges::const_iterator last_ = ranges_.cend();
};

template <typename Held>
typename HeldRanges<Held>::Ranges::const_iterator HeldRanges<Held>::first_ending_after(
    std::uint64_t begin) const {
  if (last_ != ranges_.end() && last_->first <= begin && begin < last_->second.end) {
    return last_;
  }
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second.end > begin) {
    --at;
    last_ = at;
  }
  return at;
}

template <typename Held>
void HeldRanges<Held>::set(std::uint64_t begin, std::size_t bytes, Held held, std::size_t offset) {
  const std::uint64_t end = begin + bytes;
  if (last_ != ranges_.end() && last_->first <= begin && end <= last_->second.end &&
      continues(*last_, begin, held, offset)) {
    return;
  }
  last_ = ranges_.cend();
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    const bool is_continued =
        before->second.end >= begin && continues(*before, begin, held, offset);
    if (is_continued && before->second.end >= end) {
      last_ = before;
      return;
    }
    if (is_continued) {
      next = remove_from(next, end);
      before->second.end = end;
      merge(before, next);
      return;
    }
    if (before->second.end > begin) {
      next = cut_end(before, begin, end);
    }
  }
  if (next == ranges_.end() || next->first >= end) {
    merge(ranges_.emplace_hint(next, begin, Range{end, std::move(held), offset}), next);
    return;
  }
  // The first range that meets this one becomes this one, with its memory.
  auto own = next++;
  if (own->second.end > end) {
    next = ranges_.emplace_hint(next, end, own->second);
    next->second.offset += static_cast<std::size_t>(end - own->first);
  }
  if (own->first != begin) {
    auto node = ranges_.extract(own);
    node.key() = begin;
    own = ranges_.insert(next, std::move(node));
  }
  own->second.end = end;
  own->second.offset = offset;
  // What was held is destroyed when the ranges are consistent.
  std::swap(own->second.held, held);
  next = remove_from(next, end);
  merge(own, next);
}

// Merges the range with the next one if that continues it. The range is the last one that was set.
template <typename Held>
void HeldRanges<Held>::merge(Iterator at, Iterator next) {
  if (next != ranges_.end() && next->first == at->second.end &&
      continues(*at, next->first, next->second.held, next->second.offset)) {
    at->second.end = next->second.end;
    ranges_.erase(next);
  }
  last_ = at;
}

template <typename Held>
void HeldRanges<Held>::remove(std::uint64_t begin, std::size_t bytes) {
  if (bytes == 0 || ranges_.empty()) {
    return;
  }
  const std::uint64_t end = begin + bytes;
  auto next = ranges_.lower_bound(begin);
  const bool meets_before = next != ranges_.begin() && std::prev(next)->second.end > begin;
  if (!meets_before && (next == ranges_.end() || next->first >= end)) {
    return;
  }
  last_ = ranges_.cend();
  if (meets_before) {
    next = cut_end(std::prev(next), begin, end);
  }
  remove_from(next, end);
}

template <typename Held>
void HeldRanges<Held>::copy(std::uint64_t to, const HeldRanges& source, std::uint64_t from,
                            std::size_t bytes) {
  struct Part {
    std::uint64_t begin;
    std::size_t bytes;
    Held held;
    std::size_t offset;
  };
  std::vector<Part> parts;
  source.for_each_held(
      from, bytes,
      [&](std::uint64_t begin, std::size_t part, const Held& held, std::size_t offset) {
        parts.push_back({begin, part, held, offset});
        return true;
      });
  remove(to, bytes);
  for (Part& part : parts) {
    set(to + (part.begin - from), part.bytes, std::move(part.held), part.offset);
  }
}

// Ends the range at `begin`; what it has behind `end` becomes another one. Returns the next range.
template <typename Held>
typename HeldRanges<Held>::Iterator HeldRanges<Held>::cut_end(Iterator at, std::uint64_t begin,
                                                              std::uint64_t end) {
  auto& [first, range] = *at++;
  if (range.end > end) {
    at = ranges_.emplace_hint(at, end, range);
    at->second.offset += static_cast<std::size_t>(end - first);
  }
  range.end = begin;
  return at;
}

// Removes what ranges from `at` on have before `end`. Returns the first range behind it.
template <typename Held>
typename HeldRanges<Held>::Iterator HeldRanges<Held>::remove_from(Iterator at, std::uint64_t end) {
  while (at != ranges_.end() && at->first < end) {
    if (at->second.end > end) {
      at->second.offset += static_cast<std::size_t>(end - at->first);
      auto node = ranges_.extract(at++);
      node.key() = end;
      return ranges_.insert(at, std::move(node));
    }
    at = ranges_.erase(at);
  }
  return at;
}

}  // namespace ferro::sim
