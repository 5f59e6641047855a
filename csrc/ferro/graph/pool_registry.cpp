#include "ferro/graph/pool_registry.h"

#include <new>
#include <utility>
#include <vector>

namespace ferro {

PoolRegistry::Entry& PoolRegistry::entry_of(const PoolId& id, const std::string& name) {
  Entry& entry = pools_[id];
  if (entry.pool == nullptr) {
    entry.pool = std::make_unique<CapturePool>(id, name);
    count_.store(pools_.size(), std::memory_order_relaxed);
  } else if (entry.pool->name().empty()) {
    entry.pool->set_name(name);
  }
  return entry;
}

// The pointer's end is reported by id, because another thread may borrow the pool again, and even
// destroy it, before the report.
PoolRegistry::Pool PoolRegistry::lend(Entry& entry) {
  Pool pool = entry.lent.lock();
  if (pool == nullptr) {
    pool = {entry.pool.get(),
            [this, id = entry.pool->id()](CapturePool* /*pool*/) { on_release(id); }};
    entry.lent = pool;
    entry.loan = ++loans_;
  }
  return pool;
}

PoolRegistry::Pool PoolRegistry::lend(const PoolId& id, const std::string& name) {
  const MutexLock lock(mutex_);
  return lend(entry_of(id, name));
}

PoolRegistry::Pool PoolRegistry::open(const PoolId& id, const std::string& name) {
  const MutexLock lock(mutex_);
  Entry& entry = entry_of(id, name);
  entry.handle = Handle::kOpen;
  return lend(entry);
}

PoolRegistry::Pool PoolRegistry::find(const PoolId& id) {
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : lend(found->second);
}

PoolRegistry::Pool PoolRegistry::find_by_handle(const PoolId& id) {
  const bool is_held = !knows(id) && is_held_(id);
  const MutexLock lock(mutex_);
  if (!is_held && !pools_.contains(id)) {
    return nullptr;
  }
  Entry& entry = entry_of(id, "");
  return entry.handle == Handle::kClosed ? nullptr : lend(entry);
}

void PoolRegistry::close(const PoolId& id) {
  const bool is_held = !knows(id) && is_held_(id);
  {
    const MutexLock lock(mutex_);
    if (is_held || pools_.contains(id)) {
      entry_of(id, "").handle = Handle::kClosed;
    }
  }
  on_release(id);
}

void PoolRegistry::on_release(const PoolId& id) {
  if (count() == 0) {
    return;
  }
  std::uint64_t loan = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = pools_.find(id);
    if (found == pools_.end() || found->second.is_used()) {
      return;
    }
    loan = found->second.loan;
  }
  if (is_held_(id)) {
    return;
  }
  std::unique_ptr<CapturePool> dropped;
  {
    const MutexLock lock(mutex_);
    const auto found = pools_.find(id);
    // A later borrower may have captured into it, which the answer above misses.
    if (found == pools_.end() || found->second.is_used() || found->second.loan != loan) {
      return;
    }
    dropped = std::move(found->second.pool);
    pools_.erase(found);
    count_.store(pools_.size(), std::memory_order_relaxed);
  }
  dropped.reset();
  on_gone_(id);
}

void PoolRegistry::drop_unused() {
  std::vector<PoolId> unused;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : pools_) {
      if (!entry.is_used()) {
        unused.push_back(id);
      }
    }
  }
  for (const PoolId& id : unused) {
    on_release(id);
  }
}

// Another thread of the parent may have held the lock, and may have been changing the map.
void PoolRegistry::renew_in_child() {
  new (&mutex_) Mutex;
  new (&pools_) std::map<PoolId, Entry>;
  count_.store(0, std::memory_order_relaxed);
}

bool PoolRegistry::knows(const PoolId& id) const {
  const MutexLock lock(mutex_);
  return pools_.contains(id);
}

std::string PoolRegistry::name_of(const PoolId& id) const {
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  return found == pools_.end() ? "" : found->second.pool->name();
}

std::optional<std::string> PoolRegistry::sealed_name(const PoolId& id) const {
  if (count() == 0) {
    return std::nullopt;
  }
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  const bool is_sealed = found != pools_.end() && found->second.pool->is_sealed();
  return is_sealed ? std::optional(found->second.pool->name()) : std::nullopt;
}

}  // namespace ferro
