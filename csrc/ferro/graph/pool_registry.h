// The capture pools of the process, by PyTorch's ids.
//
// A pool is registered from `open` until its handle is closed and its memory is not held any more,
// by graphs that were captured into it or by MemPools. The allocators know the holds, so `IsHeld`
// asks them. Thread-safe. Pools are destroyed outside of all locks.
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
  // Whether the memory of this pool has a hold other than the handle's.
  using IsHeld = std::function<bool(const PoolId&)>;

  PoolRegistry() = default;
  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  // The handle of a pool. A registered pool is unchanged and open again.
  std::shared_ptr<CapturePool> open(const PoolId& id, std::string name) FERRO_EXCLUDES(mutex_);
  // Null for an unknown id.
  std::shared_ptr<CapturePool> find(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // Null also if the handle is closed.
  std::shared_ptr<CapturePool> find_open(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // Closes the handle. No-op if it is closed or unknown.
  void close(const PoolId& id, const IsHeld& is_held) FERRO_EXCLUDES(mutex_);
  // Called after a release of the pool's memory: forgets the pool if its handle is closed and it is
  // not held. Reads one atomic while all handles are open.
  void on_release(const PoolId& id, const IsHeld& is_held) FERRO_EXCLUDES(mutex_);
  // Null also if the pool is not sealed. Takes no lock while there is no pool.
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
  std::atomic<std::size_t> closed_{0};  // known only because they are held
};

// The process's registry; never destroyed.
PoolRegistry& pool_registry();

}  // namespace ferro
