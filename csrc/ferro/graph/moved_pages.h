// Pages of one pool that serve its captures at several addresses (ADR 35), and the old addresses.
//
// A graph that was captured before a handle moved writes at the old addresses, later work of the
// capture at the new ones. So both stay mapped while the pool may have graphs.
//
// Under the climb lock of the device. Invariant: the old addresses are aliased blocks, and
// bytes of the block == pages of its handles * page size.
#pragma once

#include "ferro/core/heap/heap.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace ferro {

class MovedPages {
 public:
  // Adds an aliased block whose pages now serve from `to` on.
  void add(AliasedBlock from, DevicePtr to) { moves_.push_back({std::move(from), to}); }
  bool any() const { return !moves_.empty(); }
  // The handles that cannot be shared, because one that moved with them is not in `free`.
  std::set<PageHandle> staying(const std::set<PageHandle>& free) const;
  // All handles.
  std::set<PageHandle> handles() const { return staying({}); }
  // Pages of each handle that is not in `staying`.
  std::vector<std::size_t> pages_except(const std::set<PageHandle>& staying) const;
  // Removes and returns the old addresses of the handles that are not in `staying`.
  std::vector<AliasedBlock> take_except(const std::set<PageHandle>& staying);
  // Replaces old addresses in `ranges` by the present ones of their pages. O(moves log ranges).
  AddressRanges follow(AddressRanges ranges) const;
  // Throws InternalError. `own`: handles that serve only this pool.
  void check_invariants(std::size_t page_bytes, const std::set<PageHandle>& own) const;

 private:
  struct Move {
    AliasedBlock from;
    DevicePtr to{};  // a later entry may move it on
  };

  std::vector<Move> moves_;  // oldest first
};

}  // namespace ferro
