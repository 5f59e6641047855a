// Who lends handles to the arenas of a pool while a graph is captured into it.
//
// What was lent belongs to a scratch set (block.h) until the capture has ended. Under the climb lock.
#pragma once

#include "ferro/core/types/block.h"
#include "ferro/core/types/handle_range.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

class ScratchLender {
 public:
  // Do arenas of the pool borrow, at this moment, all that they grow by?
  virtual bool lends_to(const PoolId& pool) const = 0;
  // Handles that the running capture has not got yet, or that carry nothing of it any more in the
  // order of `stream`. Of at most `pages`, or `exactly` of no more, as many as there are.
  virtual std::vector<HandleRange> lend(const PoolId& pool, StreamId stream, std::size_t pages,
                                        bool exactly) = 0;
  // Handles that were lent and came behind no address.
  virtual void take_back(const PoolId& pool, std::span<const HandleRange> handles) = 0;
  // Of those that carry nothing any more, such as no other graph has: of no more than `pages`. They
  // are the arena's own from now on, and nobody else's but this graph's.
  virtual std::vector<HandleRange> let_keep(const PoolId& pool, StreamId stream,
                                            std::size_t pages) = 0;
  // They came behind these addresses, or behind none.
  virtual void on_kept(const PoolId& pool, DevicePtr begin, std::size_t bytes) = 0;
  virtual void take_back_kept(const PoolId& pool, std::span<const HandleRange> handles) = 0;
  // New ones that did: from now on they are lent.
  virtual void adopt(const PoolId& pool, std::span<const HandleRange> handles) = 0;
  // Where a capture borrows nothing: may free pages of the pool serve it at other addresses, and stay
  // behind the old ones too, which earlier kernels of the capture write?
  virtual bool moves_within(const PoolId& pool) const = 0;
  // They did, from `block`, which is aliased from now on.
  virtual void on_moved(const PoolId& pool, Block* block, std::vector<HandleRange> handles,
                        DevicePtr to) = 0;

 protected:
  ~ScratchLender() = default;
};

}  // namespace ferro
