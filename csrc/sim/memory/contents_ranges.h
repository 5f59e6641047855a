// The parts of memory that hold contents by reference (`contents.h`), and contents made of plain
// bytes.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
// Invariants: ranges are not empty and do not overlap; each holds one reference.
#pragma once

#include "sim/memory/contents.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

namespace ferro::sim {

// One reference to contents; without contents it stands for zeros.
class ContentsRef {
 public:
  ContentsRef() = default;
  explicit ContentsRef(ferro_sim_contents* contents) : contents_(contents) {
    if (contents_ != nullptr) {
      ++contents_->references;
    }
  }
  ContentsRef(const ContentsRef& other) : ContentsRef(other.contents_) {}
  ContentsRef(ContentsRef&& other) noexcept : contents_(std::exchange(other.contents_, nullptr)) {}
  ContentsRef& operator=(ContentsRef other) noexcept {
    std::swap(contents_, other.contents_);
    return *this;
  }
  ~ContentsRef() {
    if (contents_ != nullptr && --contents_->references == 0) {
      contents_->kind->destroy(contents_);
    }
  }

  ferro_sim_contents* get() const { return contents_; }
  // Passes the reference to the caller.
  ferro_sim_contents* release() { return std::exchange(contents_, nullptr); }
  bool is_zeros() const { return contents_ == nullptr; }
  // Computes the bytes. Null if they cannot be computed, and for zeros.
  const std::byte* bytes() const {
    return is_zeros() ? nullptr : static_cast<const std::byte*>(contents_->kind->bytes(contents_));
  }

 private:
  ferro_sim_contents* contents_ = nullptr;
};

// Contents with a copy of these bytes.
ContentsRef copy_bytes(const void* source, std::size_t bytes);

class ContentsRanges {
 public:
  struct Range {
    std::uint64_t end = 0;
    ContentsRef contents;
    std::size_t offset = 0;  // of the range's first byte in the contents
  };

  bool empty() const { return ranges_.empty(); }
  std::size_t count() const { return ranges_.size(); }
  // Replaces the contents of the range. Merges with the range before it if the bytes are contiguous
  // in the same contents.
  void set(std::uint64_t begin, std::size_t bytes, ContentsRef contents, std::size_t offset);
  void remove(std::uint64_t begin, std::size_t bytes);
  // Does one range without contents cover all of it?
  bool holds_zeros(std::uint64_t begin, std::size_t bytes) const;

  // Calls `held(begin, bytes, contents, offset)` for each part of the range that holds contents and
  // `plain(begin, bytes)` for each other part, in order. Neither changes the ranges. Ends before the
  // part that holds contents after `most` of these.
  template <typename Held, typename Plain>
  void for_each_part(std::uint64_t begin, std::size_t bytes, const Held& held, const Plain& plain,
                     std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    std::uint64_t end = begin + bytes;
    std::uint64_t done = begin;
    for (auto at = first_ending_after(begin); at != ranges_.end() && at->first < end; ++at) {
      const std::uint64_t from = std::max(at->first, begin);
      if (most-- == 0) {
        end = from;
        break;
      }
      if (from > done) {
        plain(done, static_cast<std::size_t>(from - done));
      }
      done = std::min(at->second.end, end);
      held(from, static_cast<std::size_t>(done - from), at->second.contents,
           at->second.offset + static_cast<std::size_t>(from - at->first));
    }
    if (done < end) {
      plain(done, static_cast<std::size_t>(end - done));
    }
  }

 private:
  using Ranges = std::map<std::uint64_t, Range>;
  Ranges::iterator cut_end(Ranges::iterator at, std::uint64_t begin, std::uint64_t end);
  Ranges::iterator remove_from(Ranges::iterator at, std::uint64_t end);
  // The first range that ends after `begin`.
  Ranges::const_iterator first_ending_after(std::uint64_t begin) const;

  Ranges ranges_;  // by begin
};

}  // namespace ferro::sim
