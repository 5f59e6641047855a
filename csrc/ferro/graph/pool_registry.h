// The capture pools of the process, by the ids under which PyTorch knows them.
//
// A pool is known from `open` until its handle is closed and nobody holds its memory any more:
// graphs that were captured into it, and MemPools, hold it. Who holds what the allocators know, so
// they are asked. Thread-safe. Pools are dropped outside of all locks.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/graph/capture_pool.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace ferro {

class PoolRegistry {
 public:
  // Does anybody but the handle hold the memory of this pool?
  using IsHeld = std::function<bool(const PoolId&)>;

  PoolRegistry() = default;
  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  // The handle of a pool. One that is known already stays as it is, and is open again.
  std::shared_ptr<CapturePool> open(const PoolId& id, std::string name) FERRO_EXCLUDES(mutex_);
  // Null for an id that is unknown.
  std::shared_ptr<CapturePool> find(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // Null also for one whose handle is closed.
  std::shared_ptr<CapturePool> find_open(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // Lets go of the handle; nothing when it is closed already, or unknown.
  void close(const PoolId& id, const IsHeld& is_held) FERRO_EXCLUDES(mutex_);
  // To be called when somebody let go of the pool's memory: forgets it when nobody needs it. Costs
  // the same however many pools there are, and nothing while all handles are open.
  void on_release(const PoolId& id, const IsHeld& is_held) FERRO_EXCLUDES(mutex_);
  // Null also when the pool is not sealed. Takes no lock while there is no pool.
  std::shared_ptr<CapturePool> find_sealed(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  std::size_t count() const FERRO_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::shared_ptr<CapturePool> pool;
    bool open = true;
  };

  bool is_closed(const PoolId& id) const FERRO_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::map<PoolId, Entry> pools_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::size_t> known_{0};
  std::atomic<std::size_t> closed_{0};  // known, but only as long as somebody holds them
};

// The one of the process; never destroyed.
PoolRegistry& pool_registry();

}  // namespace ferro
