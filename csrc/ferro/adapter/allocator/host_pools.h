// The pools of PyTorch's allocator of pinned host memory that belong to graphs. Each pool of graphs
// has one there, under the same id.
//
// PyTorch's graph objects begin, end and release them, and leave one useless in two cases. Up to
// 2.12 a capture that fails is not ended there: it would record into that pool to the end of the
// process. 2.13 ends it, and does not release the pool. And a pool that its last graph released
// cannot begin again before that allocator's cache is emptied.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/types/pool_id.h"

#include <set>

namespace ferro {

// Thread-safe. Invariant: one hold of ours for each pool in `held_`.
class HostPools {
 public:
  // So that captures into the pool can begin as long as it is held. Again: nothing. Throws
  // c10::Error when its last graph is gone, and pinned memory of it still in use; then nothing
  // changed.
  void hold(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // Nothing for a pool that is not held.
  void let_go(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // After a capture into the pool that failed: ends and releases what PyTorch left behind. With
  // `is_ended` it has ended the capture for the device.
  static void settle_failed_capture(const PoolId& id, bool is_ended);

 private:
  Mutex mutex_;
  std::set<PoolId> held_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
