// Policy: what of a pool's memory carries something from one of its graphs to the next. Pure.
//
// Cudagraph trees record one graph after another into a pool, and ask for a checkpoint behind each.
// What lived when a capture began (copies of its inputs, which are written eagerly before each
// replay), when it ended, or in a checkpoint is *carried*: graphs and the program find it there
// whatever ran in between. All else that a capture was given is scratch of its graph alone.
//
// What lives at the end of a recording but not in its checkpoint, as a library's workspace does,
// was let go by the recording itself, and is not carried.
#pragma once

#include "ferro/core/types/address_ranges.h"

#include <optional>
#include <utility>

namespace ferro {

// Of one pool. Not thread-safe.
class CarriedMemory {
 public:
  // Are checkpoints of it taken?
  bool is_of_tree() const { return is_of_tree_; }
  // From now on. False: what was carried until now is unknown, and the caller settles it.
  bool expect_checkpoints() {
    is_of_tree_ = true;
    return is_known_;
  }

  // A capture begins, and ends. `live()`: AddressRanges of what lives; only called where it is
  // asked for. A pool into which another capture begins without a checkpoint is not a tree's, and
  // costs nothing more.
  template <typename Live>
  void begin(Live live) {
    if (at_end_ && !is_of_tree_) {
      is_known_ = false;
      ranges_.clear();
    }
    close();
    is_captured_into_ = true;
    if (is_known_) {
      ranges_.unite(live());
    }
  }
  template <typename Live>
  void end(bool succeeded, Live live) {
    if (!std::exchange(is_captured_into_, false)) {
      return;
    }
    has_grown_ = true;
    if (succeeded && is_known_) {
      AddressRanges lived = live();
      if (lived.bytes() != 0) {
        at_end_ = std::move(lived);
      }
    }
  }
  // One was taken, or restored, with these blocks.
  void on_checkpoint(const AddressRanges& live) {
    at_end_.reset();
    ranges_.unite(live);
  }
  void on_restore(const AddressRanges& live) {
    close();
    ranges_.unite(live);
  }

  bool is_captured_into() const { return is_captured_into_; }
  // Was it captured into since `settle`, and is not now?
  bool has_news() const { return has_grown_ && !is_captured_into_; }
  const AddressRanges& ranges() {
    close();
    return ranges_;
  }
  // All that the pool has now counts as carried, so that of each graph all scratch is shared at one
  // time, or none.
  void settle(const AddressRanges& backed) {
    close();
    ranges_.unite(backed);
    is_known_ = true;
    has_grown_ = false;
  }
  // The pool has no graphs.
  void forget() {
    const bool is_of_tree = is_of_tree_;
    *this = {};
    is_of_tree_ = is_of_tree;
  }

 private:
  void close() {
    if (at_end_) {
      if (is_known_) {
        ranges_.unite(*at_end_);
      }
      at_end_.reset();
    }
  }

  bool is_of_tree_ = false;
  bool is_known_ = true;
  bool is_captured_into_ = false;
  bool has_grown_ = false;
  AddressRanges ranges_;
  std::optional<AddressRanges> at_end_;  // of the last capture, until its checkpoint
};

}  // namespace ferro
