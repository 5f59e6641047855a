// The capture pools of the process, by PyTorch's ids.
//
// One id has one pool. The registry owns it and lends it. A pool exists while its handle is open,
// while a lent pointer to it exists, and while an allocator holds its memory for graphs or
// MemPools. Thread-safe. A pool is destroyed outside all locks, by the call that ended its last use.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/graph/capture_pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace ferro {

class PoolRegistry {
 public:
  using Pool = std::shared_ptr<CapturePool>;
  // Whether a graph or a MemPool holds memory of this pool.
  using IsHeld = std::function<bool(const PoolId&)>;
  // Called after a pool was destroyed.
  using OnGone = std::function<void(const PoolId&)>;

  // Both functions are called without a lock of the registry. They must outlive lent pointers, as
  // must the registry.
  explicit PoolRegistry(
      IsHeld is_held, OnGone on_gone = [](const PoolId&) {})
      : is_held_(std::move(is_held)), on_gone_(std::move(on_gone)) {}
  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  // Lends the pool, and creates it if it is unknown. A pool without a name gets `name`.
  Pool lend(const PoolId& id, const std::string& name = "") FERRO_EXCLUDES(mutex_);
  // As `lend`, and opens the handle, which keeps the pool until `close`.
  Pool open(const PoolId& id, const std::string& name) FERRO_EXCLUDES(mutex_);
  // Null for an unknown id.
  Pool find(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // Null also after `close`. An unknown id whose memory is held becomes a pool.
  Pool find_by_handle(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // Removes the handle: `find_by_handle` returns null as long as the pool exists. No-op for an id
  // that is neither known nor held.
  void close(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // Called after a hold of the pool's memory was released: destroys the pool if nothing uses it.
  // Its cost does not depend on the number of pools.
  void on_release(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // `on_release` of every pool, for allocators that do not call it.
  void drop_unused() FERRO_EXCLUDES(mutex_);

  // Called in a child of fork(), by its only thread: abandons all pools. Pointers that were lent
  // stay valid.
  void renew_in_child() FERRO_NO_THREAD_SAFETY_ANALYSIS;

  bool knows(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // Empty for an unknown id.
  std::string name_of(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  // The name of a sealed pool; none for any other. Takes no lock while there is no pool.
  std::optional<std::string> sealed_name(const PoolId& id) const FERRO_EXCLUDES(mutex_);
  std::size_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  enum class Handle : std::uint8_t { kNone, kOpen, kClosed };
  struct Entry {
    bool is_used() const { return handle == Handle::kOpen || !lent.expired(); }

    std::unique_ptr<CapturePool> pool;
    std::weak_ptr<CapturePool> lent;
    std::uint64_t loan = 0;  // the number of the last one
    Handle handle = Handle::kNone;
  };

  Entry& entry_of(const PoolId& id, const std::string& name) FERRO_REQUIRES(mutex_);
  Pool lend(Entry& entry) FERRO_REQUIRES(mutex_);

  const IsHeld is_held_;
  const OnGone on_gone_;
  mutable Mutex mutex_;
  std::map<PoolId, Entry> pools_ FERRO_GUARDED_BY(mutex_);
  std::uint64_t loans_ FERRO_GUARDED_BY(mutex_) = 0;
  std::atomic<std::size_t> count_{0};
};

}  // namespace ferro
