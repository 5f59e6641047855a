// The pools of one device and their heaps. Finds the heap of a stream.
//
// Thread-safe. Only `drop_if_unused` and `drop_unused` destroy heaps. They are called under the
// device's climb lock; a caller that holds that lock, or the pool, may keep a heap that it got
// here. Heaps of the default pool live as long as the table.
//
// Cost: a lookup on the hit path reads one thread-local entry. A function that returns a list is
// O(its length), all others are O(log pools).
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/stats/pool_bytes.h"
#include "ferro/core/types/pool_id.h"

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace ferro {

// One heap of a pool.
struct HeapKey {
  StreamId stream{};
  HeapKind kind = HeapKind::kPages;

  friend auto operator<=>(const HeapKey&, const HeapKey&) = default;
};

// The heaps of one owner. Plain data of PoolTable, guarded by its lock.
struct Pool {
  // The number of graphs, MemPools and running diversions that hold the pool. The default pool is
  // always held; a pool that is not held keeps its live blocks and gives up all other memory.
  int use_count = 0;
  // Its free memory may serve requests of the default pool before they fail, even while it is held.
  bool use_on_oom = false;
  // The bytes that a private pool holds, and its counters at the last reset.
  PoolBytes bytes;
  std::array<std::int64_t, kStatClasses> increased_at_reset{};
  std::array<std::int64_t, kStatClasses> decreased_at_reset{};
  std::map<HeapKey, std::unique_ptr<Heap>> heaps;

  bool is_reclaimable() const { return use_count == 0 || use_on_oom; }
};

class PoolTable {
 public:
  PoolTable();
  PoolTable(const PoolTable&) = delete;
  PoolTable& operator=(const PoolTable&) = delete;

  // Called before the first heap is created.
  void set_context(std::unique_ptr<HeapContext> context, bool streams_last) {
    context_ = std::move(context);
    streams_last_ = streams_last;
  }
  // Called before the first heap of a private pool is created.
  void set_graphs(GraphPages* graphs) { context_->graphs = graphs; }
  HeapList& with_free_pages() { return with_free_pages_; }
  HeapList& with_pending() { return with_pending_; }

  // Holds. `id` is not the default pool's.
  // Adds a hold; creates the pool if it is unknown.
  void hold(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // False if the pool is unknown or not held.
  bool release(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // -1 if the pool is unknown.
  int use_count(const PoolId& id) FERRO_EXCLUDES(mutex_);
  // Sets the pool's flag, which is lost with the pool. An unknown pool is not created; it gets the
  // flag when it is.
  void set_use_on_oom(const PoolId& id, bool use) FERRO_EXCLUDES(mutex_);
  // Removes a pool without heaps. None if it is unknown or has a heap.
  struct Unused {
    int use_count = 0;
    bool use_on_oom = false;
  };
  std::optional<Unused> remove_unused(const PoolId& id) FERRO_EXCLUDES(mutex_);

  // Heaps. Creates the heap if it is missing.
  Heap& arena(const PoolId& pool, StreamId stream, HeapKind kind) {
    CachedArena& slot = cache_slot(pool, stream, kind);
    if (slot.table != serial_ || slot.stream != stream || slot.pool != pool ||
        slot.generation != generation_.load(std::memory_order_relaxed)) [[unlikely]] {
      fill_slot(slot, pool, stream, kind);
    }
    return *slot.heap;
  }

  // Lists. In order of pools, streams and kinds.
  std::vector<Heap*> heaps_of(const PoolId& id) FERRO_EXCLUDES(mutex_);
  std::vector<Heap*> all_heaps() FERRO_EXCLUDES(mutex_);
  // The streams of heaps that are sure to exist. Each once, in ascending order.
  std::vector<StreamId> lasting_streams() FERRO_EXCLUDES(mutex_);
  // The first of them that have a heap in the default pool; returns their number. Allocates nothing.
  std::size_t copy_lasting_streams(std::span<StreamId> to) FERRO_EXCLUDES(mutex_);
  // The heaps that hold only small blocks, in no order.
  std::vector<Heap*> small_heaps() FERRO_EXCLUDES(mutex_);
  // The heaps of pools whose free memory is reclaimed before a request of the default pool fails.
  std::vector<Heap*> reclaimable_heaps() FERRO_EXCLUDES(mutex_);
  // The heaps of the default pool and of pools that are not held.
  std::vector<Heap*> heaps_to_empty() FERRO_EXCLUDES(mutex_);

  // Requires the climb lock. Calls `visit(Heap&)` for the heaps of the pool that may have whole
  // free pages, until it returns false. Does not iterate over heaps without free pages.
  template <typename Visit>
  void for_each_with_free_pages(const PoolId& id, Visit visit) FERRO_EXCLUDES(mutex_) {
    for_each_in(with_free_pages_, seen_with_free_pages_,
                [&](Heap& heap) { return heap.pool() != id || visit(heap); });
  }
  // The same for all heaps with pending frees, of all pools.
  template <typename Visit>
  void for_each_with_pending(Visit visit) FERRO_EXCLUDES(mutex_) {
    for_each_in(with_pending_, seen_with_pending_, [&](Heap& heap) {
      visit(heap);
      return true;
    });
  }

  // Require the climb lock. Destroy unused heaps of pools not held, and a pool with its last heap.
  void drop_if_unused(const PoolId& id) FERRO_EXCLUDES(mutex_);
  void drop_unused() FERRO_EXCLUDES(mutex_);

  // Bytes held by each private pool that has or had memory. The numbers of removed pools stay, as
  // in the native allocator, but only those of the last kMaxGone.
  std::map<PoolId, std::array<StatValue, kStatClasses>> reserved() FERRO_EXCLUDES(mutex_);
  // Bytes of a scratch set that the pool takes into account. It exists unless `change` is 0.
  void count_bytes(const PoolId& id, std::int64_t change) FERRO_EXCLUDES(mutex_);
  void reset_accumulated() FERRO_EXCLUDES(mutex_);
  void reset_peaks() FERRO_EXCLUDES(mutex_);
  // Calls `function(const PoolId&, const Pool&)`.
  template <typename Function>
  void for_each_pool(Function function) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      function(id, pool);
    }
  }

 private:
  // The arena that serves a stream. The table's serial number is never reused, and its generation
  // changes whenever an arena is destroyed, so an outdated entry never matches.
  struct CachedArena {
    std::uint64_t table = 0;
    StreamId stream{};
    PoolId pool{};
    std::uint64_t generation = 0;
    Heap* heap = nullptr;
  };
  using Numbers = std::array<StatValue, kStatClasses>;
  static constexpr std::size_t kMaxGone = 256;
  static Numbers numbers_of(const Pool& pool);
  static constexpr std::size_t kCachedArenas = 16;
  static thread_local std::array<CachedArena, kCachedArenas> cached_arenas_;

  CachedArena& cache_slot(const PoolId& pool, StreamId stream, HeapKind kind) const {
    // Stream handles are addresses of objects, which lie hundreds of bytes apart. The kinds of one
    // stream and pool have different places, so that places need not be compared by kind.
    const auto bits = static_cast<std::uint64_t>(stream);
    const std::uint64_t mixed = (bits >> 8) ^ (bits >> 4) ^ serial_ ^ (pool.graph << 1) ^
                                (pool.handle << 2) ^ static_cast<std::uint64_t>(kind);
    return cached_arenas_[mixed % kCachedArenas];
  }
  void fill_slot(CachedArena& slot, const PoolId& pool, StreamId stream, HeapKind kind)
      FERRO_EXCLUDES(mutex_);
  Pool& find_or_make_pool(const PoolId& id) FERRO_REQUIRES(mutex_);
  bool try_drop(std::map<PoolId, Pool>::iterator pool) FERRO_REQUIRES(mutex_);
  void forget_heap(Heap* heap) FERRO_REQUIRES(mutex_);
  void note_flags(const PoolId& id, const Pool& pool) FERRO_REQUIRES(mutex_);
  static void append(std::vector<Heap*>& heaps, const Pool& pool);
  static HeapList::Links& links_of(Heap* heap) { return heap->links(); }
  // `visit` returns whether it goes on. `seen`: the list, as climbs have seen it.
  template <typename Visit>
  void for_each_in(HeapList& list, std::vector<Heap*>& seen, Visit visit) FERRO_EXCLUDES(mutex_);

  const std::uint64_t serial_;
  std::unique_ptr<HeapContext> context_;
  bool streams_last_ = true;
  HeapList with_free_pages_{HeapList::kWithFreePages};
  HeapList with_pending_{HeapList::kWithPending};
  // As climbs have seen them; guarded by the climb lock.
  std::vector<Heap*> seen_with_free_pages_;
  std::vector<Heap*> seen_with_pending_;

  Mutex mutex_;
  std::map<PoolId, Pool> pools_ FERRO_GUARDED_BY(mutex_);  // always contains the default pool
  // Flagged pools that do not exist yet.
  std::set<PoolId> early_use_on_oom_ FERRO_GUARDED_BY(mutex_);
  std::set<Heap*> small_heaps_ FERRO_GUARDED_BY(mutex_);
  std::set<PoolId> reclaimable_ FERRO_GUARDED_BY(mutex_);  // pools with is_reclaimable, not default
  std::map<PoolId, Numbers> gone_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> generation_{1};
};

// Holds a private pool while the object lives; no-op for the default pool.
class ScopedPoolHold {
 public:
  ScopedPoolHold(PoolTable& pools, const PoolId& id) : pools_(pools), id_(id) {
    if (id_ != kDefaultPool) {
      pools_.hold(id_);
    }
  }
  ~ScopedPoolHold() {
    if (id_ != kDefaultPool) {
      pools_.release(id_);
    }
  }
  ScopedPoolHold(const ScopedPoolHold&) = delete;
  ScopedPoolHold& operator=(const ScopedPoolHold&) = delete;

 private:
  PoolTable& pools_;
  const PoolId id_;
};

template <typename Visit>
void PoolTable::for_each_in(HeapList& list, std::vector<Heap*>& seen, Visit visit) {
  list.take_new(seen, links_of);
  for (std::size_t i = 0; i < seen.size();) {
    if (seen[i]->leave(list)) {
      seen[i] = seen.back();
      seen.pop_back();
    } else if (visit(*seen[i])) {
      ++i;
    } else {
      return;
    }
  }
}

}  // namespace ferro
