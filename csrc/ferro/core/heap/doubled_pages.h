// Handles that serve captures into their own pool at several addresses (arena_growth.cpp): which they
// are, and the old addresses, until nobody holds the pool.
//
// A graph that was captured before a handle moved writes at the old addresses, and the next part of
// the capture at the new ones. So both stay mapped for as long as there may be graphs.
//
// Under the climb lock of the device. Invariant: the old addresses are aliased blocks, of as many
// bytes as their handles have.
#pragma once

#include "ferro/core/heap/arena_scratch.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <vector>

namespace ferro {

class DoubledPages {
 public:
  // From `from`, which is aliased from now on, to the addresses from `to` on.
  void add(const PoolId& pool, ArenaScratch::Aliased from, DevicePtr to) {
    by_pool_[pool].push_back({std::move(from), to});
  }
  bool any_of(const PoolId& pool) const { return by_pool_.contains(pool); }
  // Those that stay where they are when others of the pool are shared: of which not all are in `free`
  // that moved together.
  std::set<PageHandle> staying(const PoolId& pool, const std::set<PageHandle>& free) const;
  // Of the other handles, each once.
  std::vector<std::size_t> pages_of_others(const PoolId& pool,
                                           const std::set<PageHandle>& staying) const;
  // The old addresses of all others, which are the caller's from now on.
  std::vector<ArenaScratch::Aliased> take(const PoolId& pool, const std::set<PageHandle>& staying);
  std::set<PageHandle> handles_of(const PoolId& pool) const { return staying(pool, {}); }
  // Addresses of the pool, with old ones as where their handles are now. O(moves log ranges).
  AddressRanges follow(const PoolId& pool, AddressRanges ranges) const;

  // Nobody holds the pool: the old addresses may go.
  void let_go(const PoolId& pool);
  void let_go_of_all();
  bool any_gone() const { return !gone_.empty(); }
  // Unmaps those that may go, once the device is at rest. What the driver refuses stays for the next
  // call.
  void remove_gone();

  // `is_own(pool, handle)`: does it serve the pool and nobody else?
  void check_invariants(std::size_t page_bytes,
                        const std::function<bool(const PoolId&, PageHandle)>& is_own) const;

 private:
  struct Moved {
    ArenaScratch::Aliased from;
    DevicePtr to{};  // or it has moved on from there, which is a later entry
  };

  std::map<PoolId, std::vector<Moved>> by_pool_;  // in the order in which they moved
  std::vector<Moved> gone_;
};

}  // namespace ferro
