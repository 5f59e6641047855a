// The pools of graphs in PyTorch's allocator of pinned host memory. Each pool of graphs has one
// there, under the same id.
//
// PyTorch's graph objects begin, end and release them, but leave a pool unusable in two cases.
// After a failed capture, versions up to 2.12 do not end the capture there, so it would record into
// that pool until the process ends; 2.13 ends it, but does not release the pool. And a pool that
// its last graph released cannot begin again before that allocator's cache is emptied.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/types/pool_id.h"

#include <set>

namespace ferro {

// Thread-safe. Invariant: one hold of ours for each pool in `held_`.
class HostPools {
 public:
  // Holds the pool, so that captures into it can begin. No-op if it is held. Throws c10::Error,
  // with nothing changed, if its last graph is destroyed and pinned memory of it is still in use.
  void hold(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // No-op for a pool that is not held.
  void release(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // After a failed capture into the pool: ends and releases what PyTorch left. `is_ended`: PyTorch
  // has ended the capture for the device.
  static void settle_failed_capture(const PoolId& id, bool is_ended);

 private:
  Mutex mutex_;
  std::set<PoolId> held_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
