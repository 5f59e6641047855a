// Who lends handles to the arenas of a pool while a graph is captured into it.
//
// What was lent belongs to a scratch set (block.h) until the capture has ended. Under the climb lock.
#pragma once

#include "ferro/core/types/handle_range.h"
#include "ferro/core/types/pool_id.h"

#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

class ScratchLender {
 public:
  // Do arenas of the pool borrow, at this moment, all that they grow by?
  virtual bool lends_to(const PoolId& pool) const = 0;
  // Handles that the running capture has not got yet, of at most `pages`, or `exactly` of no more,
  // as many as there are.
  virtual std::vector<HandleRange> lend(const PoolId& pool, std::size_t pages, bool exactly) = 0;
  // Handles that were lent and came behind no address.
  virtual void take_back(const PoolId& pool, std::span<const HandleRange> handles) = 0;
  // New ones that did: from now on they are lent.
  virtual void adopt(const PoolId& pool, std::span<const HandleRange> handles) = 0;

 protected:
  ~ScratchLender() = default;
};

}  // namespace ferro
