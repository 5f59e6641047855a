#include "ferro/graph/pool_registry.h"

#include <utility>

namespace ferro {

std::shared_ptr<CapturePool> PoolRegistry::open(const PoolId& id, std::string name) {
  const MutexLock lock(mutex_);
  Entry& entry = pools_[id];
  if (entry.pool == nullptr) {
    entry.pool = std::make_shared<CapturePool>(id, std::move(name));
    known_.fetch_add(1, std::memory_order_relaxed);
  } else if (!entry.open) {
    entry.open = true;
    closed_.fetch_sub(1, std::memory_order_relaxed);
  }
  return entry.pool;
}

std::shared_ptr<CapturePool> PoolRegistry::find(const PoolId& id) const {
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : found->second.pool;
}

std::shared_ptr<CapturePool> PoolRegistry::find_open(const PoolId& id) const {
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  return found == pools_.end() || !found->second.open ? nullptr : found->second.pool;
}

void PoolRegistry::close(const PoolId& id, const IsHeld& is_held) {
  {
    const MutexLock lock(mutex_);
    const auto found = pools_.find(id);
    if (found == pools_.end() || !found->second.open) {
      return;
    }
    found->second.open = false;
    closed_.fetch_add(1, std::memory_order_relaxed);
  }
  on_release(id, is_held);
}

bool PoolRegistry::is_closed(const PoolId& id) const {
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  return found != pools_.end() && !found->second.open;
}

void PoolRegistry::on_release(const PoolId& id, const IsHeld& is_held) {
  if (closed_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  // Without the lock, because the allocators take their own locks to answer.
  if (!is_closed(id) || is_held(id)) {
    return;
  }
  std::shared_ptr<CapturePool> dropped;
  const MutexLock lock(mutex_);
  const auto found = pools_.find(id);
  if (found != pools_.end() && !found->second.open) {  // it may be open again
    dropped = std::move(found->second.pool);
    pools_.erase(found);
    known_.fetch_sub(1, std::memory_order_relaxed);
    closed_.fetch_sub(1, std::memory_order_relaxed);
  }
}

std::shared_ptr<CapturePool> PoolRegistry::find_sealed(const PoolId& id) const {
  if (known_.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  std::shared_ptr<CapturePool> pool = find(id);
  return pool != nullptr && pool->is_sealed() ? pool : nullptr;
}

std::size_t PoolRegistry::count() const {
  const MutexLock lock(mutex_);
  return pools_.size();
}

PoolRegistry& pool_registry() {
  static auto* registry = new PoolRegistry;
  return *registry;
}

}  // namespace ferro
