#include "ferro/core/device/pool_table.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> serial{0};
  return serial.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

thread_local std::array<PoolTable::CachedArena, PoolTable::kCachedArenas> PoolTable::cached_arenas_;

PoolTable::PoolTable() : serial_(next_serial()) {
  const MutexLock lock(mutex_);
  pools_[kDefaultPool].use_count = 1;
}

void PoolTable::note_flags(const PoolId& id, const Pool& pool) {
  if (id != kDefaultPool && pool.is_reclaimable()) {
    reclaimable_.insert(id);
  } else {
    reclaimable_.erase(id);
  }
}

Pool& PoolTable::find_or_make_pool(const PoolId& id) {
  const auto [entry, is_new] = pools_.try_emplace(id);
  Pool& pool = entry->second;
  if (is_new) {
    pool.use_on_oom = early_use_on_oom_.erase(id) != 0;
    note_flags(id, pool);
  }
  return pool;
}

void PoolTable::hold(const PoolId& id) {
  const MutexLock lock(mutex_);
  Pool& pool = find_or_make_pool(id);
  ++pool.use_count;
  note_flags(id, pool);
}

std::optional<PoolTable::Unused> PoolTable::remove_unused(const PoolId& id) {
  const MutexLock lock(mutex_);
  const auto pool = pools_.find(id);
  if (id == kDefaultPool || pool == pools_.end() || !pool->second.heaps.empty()) {
    return std::nullopt;
  }
  const Unused unused{pool->second.use_count, pool->second.use_on_oom};
  reclaimable_.erase(id);
  pools_.erase(pool);
  return unused;
}

bool PoolTable::release(const PoolId& id) {
  const MutexLock lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end() || pool->second.use_count == 0) {
    return false;
  }
  --pool->second.use_count;
  note_flags(id, pool->second);
  return true;
}

int PoolTable::use_count(const PoolId& id) {
  const MutexLock lock(mutex_);
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? -1 : pool->second.use_count;
}

void PoolTable::count_bytes(const PoolId& id, std::int64_t change) {
  const MutexLock lock(mutex_);
  if (change != 0) {
    pools_.at(id).bytes.change(kLarge, change);
  }
}

void PoolTable::set_use_on_oom(const PoolId& id, bool use) {
  const MutexLock lock(mutex_);
  if (const auto pool = pools_.find(id); pool != pools_.end()) {
    pool->second.use_on_oom = use;
    note_flags(id, pool->second);
  } else if (use) {
    early_use_on_oom_.insert(id);
  } else {
    early_use_on_oom_.erase(id);
  }
}

void PoolTable::fill_slot(CachedArena& slot, const PoolId& id, StreamId stream, HeapKind kind) {
  const MutexLock lock(mutex_);
  Pool& pool = find_or_make_pool(id);
  std::unique_ptr<Heap>& heap = pool.heaps[{stream, kind}];
  if (heap == nullptr) {
    PoolBytes* bytes = id == kDefaultPool ? nullptr : &pool.bytes;
    heap = std::make_unique<Heap>(*context_, id, stream, kind, bytes);
    if (kind == HeapKind::kSmallPages) {
      small_heaps_.insert(heap.get());
    }
    heap->set_stream_lasts(streams_last_);
  }
  slot = {serial_, stream, id, generation_.load(std::memory_order_relaxed), heap.get()};
}

void PoolTable::append(std::vector<Heap*>& heaps, const Pool& pool) {
  for (const auto& [key, heap] : pool.heaps) {
    heaps.push_back(heap.get());
  }
}

std::vector<Heap*> PoolTable::heaps_of(const PoolId& id) {
  const MutexLock lock(mutex_);
  std::vector<Heap*> heaps;
  if (const auto pool = pools_.find(id); pool != pools_.end()) {
    append(heaps, pool->second);
  }
  return heaps;
}

std::vector<Heap*> PoolTable::small_heaps() {
  const MutexLock lock(mutex_);
  return {small_heaps_.begin(), small_heaps_.end()};
}

std::vector<Heap*> PoolTable::all_heaps() {
  const MutexLock lock(mutex_);
  std::vector<Heap*> heaps;
  for (const auto& [id, pool] : pools_) {
    append(heaps, pool);
  }
  return heaps;
}

std::vector<StreamId> PoolTable::lasting_streams() {
  std::set<StreamId> streams;
  const MutexLock lock(mutex_);
  for (const auto& [id, pool] : pools_) {
    for (const auto& [key, heap] : pool.heaps) {
      if (heap->stream_lasts()) {
        streams.insert(key.stream);
      }
    }
  }
  return {streams.begin(), streams.end()};
}

std::size_t PoolTable::copy_lasting_streams(std::span<StreamId> to) {
  const MutexLock lock(mutex_);
  std::size_t count = 0;
  for (const auto& [key, heap] : pools_.at(kDefaultPool).heaps) {
    if (count == to.size()) {
      break;
    }
    // Heaps are sorted by stream.
    if (heap->stream_lasts() && (count == 0 || to[count - 1] != key.stream)) {
      to[count++] = key.stream;
    }
  }
  return count;
}

std::vector<Heap*> PoolTable::reclaimable_heaps() {
  const MutexLock lock(mutex_);
  std::vector<Heap*> heaps;
  for (const PoolId& id : reclaimable_) {
    append(heaps, pools_.at(id));
  }
  return heaps;
}

std::vector<Heap*> PoolTable::heaps_to_empty() {
  const MutexLock lock(mutex_);
  std::vector<Heap*> heaps;
  append(heaps, pools_.at(kDefaultPool));
  for (const PoolId& id : reclaimable_) {
    if (const Pool& pool = pools_.at(id); pool.use_count == 0) {
      append(heaps, pool);
    }
  }
  return heaps;
}

void PoolTable::forget_heap(Heap* heap) {
  with_free_pages_.take_new(seen_with_free_pages_, links_of);
  with_pending_.take_new(seen_with_pending_, links_of);
  std::erase(seen_with_free_pages_, heap);
  std::erase(seen_with_pending_, heap);
  small_heaps_.erase(heap);
}

// False if the pool is held or a heap of it is in use.
bool PoolTable::try_drop(std::map<PoolId, Pool>::iterator found) {
  Pool& pool = found->second;
  if (found->first == kDefaultPool || pool.use_count != 0) {
    return false;
  }
  std::erase_if(pool.heaps, [this](const auto& entry) FERRO_REQUIRES(mutex_) {
    if (!entry.second->is_empty()) {
      return false;
    }
    forget_heap(entry.second.get());
    generation_.fetch_add(1, std::memory_order_relaxed);
    return true;
  });
  if (!pool.heaps.empty()) {
    return false;
  }
  if (pool.bytes.of[kAll].held.increased.get() != 0) {
    gone_[found->first] = numbers_of(pool);
    if (gone_.size() > kMaxGone) {
      gone_.erase(gone_.begin());
    }
  }
  reclaimable_.erase(found->first);
  pools_.erase(found);
  return true;
}

void PoolTable::drop_if_unused(const PoolId& id) {
  const MutexLock lock(mutex_);
  if (const auto pool = pools_.find(id); pool != pools_.end()) {
    try_drop(pool);
  }
}

void PoolTable::drop_unused() {
  const MutexLock lock(mutex_);
  const std::set<PoolId> giving = reclaimable_;
  for (const PoolId& id : giving) {
    try_drop(pools_.find(id));
  }
}

PoolTable::Numbers PoolTable::numbers_of(const Pool& pool) {
  Numbers numbers;
  for (std::size_t i = 0; i < kStatClasses; ++i) {
    const auto& [held, peak] = pool.bytes.of[i];
    numbers[i] = {held.current(), peak.get(), held.increased.get() - pool.increased_at_reset[i],
                  held.decreased.get() - pool.decreased_at_reset[i]};
  }
  return numbers;
}

std::map<PoolId, std::array<StatValue, kStatClasses>> PoolTable::reserved() {
  const MutexLock lock(mutex_);
  std::map<PoolId, Numbers> reserved = gone_;
  for (const auto& [id, pool] : pools_) {
    // A pool that never received memory is not shown.
    if (id != kDefaultPool && pool.bytes.of[kAll].held.increased.get() != 0) {
      reserved[id] = numbers_of(pool);
    }
  }
  return reserved;
}

void PoolTable::reset_accumulated() {
  const MutexLock lock(mutex_);
  for (auto& [id, pool] : pools_) {
    for (std::size_t i = 0; i < kStatClasses; ++i) {
      const Gauge& held = pool.bytes.of[i].held;
      pool.increased_at_reset[i] = held.increased.get();
      pool.decreased_at_reset[i] = held.decreased.get();
    }
  }
  for (auto& [id, numbers] : gone_) {
    for (StatValue& value : numbers) {
      value.increased = value.decreased = 0;
    }
  }
}

void PoolTable::reset_peaks() {
  const MutexLock lock(mutex_);
  for (auto& [id, pool] : pools_) {
    for (PoolBytes::OfClass& bytes : pool.bytes.of) {
      bytes.peak.set(bytes.held.current());
    }
  }
  for (auto& [id, numbers] : gone_) {
    for (StatValue& value : numbers) {
      value.peak = 0;
    }
  }
}

}  // namespace ferro
