// Allocations and their record, checkpoints, what goes, and what the core asks between captures.
#include "ferro/graph/graph_memory.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

GraphMemory::GraphMemory(DeviceMemory& device)
    : device_(device), parts_(device.parts()), climb_mutex_(device.climb_mutex()) {
  device_.set_graphs(this);
}

GraphMemory::~GraphMemory() {
  {
    const RecursiveMutexLock lock(climb_mutex_);
    for (auto& [id, pool] : pools_) {
      release(pool);
    }
  }
  device_.empty_cache();
  device_.set_graphs(nullptr);
}

GraphPool* GraphMemory::find(const PoolId& id) {
  const auto found = pools_.find(id);
  return found != pools_.end() ? &found->second : nullptr;
}

const GraphPool* GraphMemory::find(const PoolId& id) const {
  const auto found = pools_.find(id);
  return found != pools_.end() ? &found->second : nullptr;
}

GraphPool& GraphMemory::pool_of(const PoolId& id) {
  GraphPool* known = find(id);
  if (known == nullptr) {
    const MutexLock lock(records_mutex_);
    known = &pools_.try_emplace(id, id).first->second;
  }
  return *known;
}

void GraphMemory::update_tracked(GraphPool& pool) {
  const bool was = std::exchange(pool.is_tracked, pool.should_be_tracked());
  tracked_.fetch_add(std::size_t{pool.is_tracked} - std::size_t{was}, std::memory_order_relaxed);
}

AddressRanges GraphMemory::live_ranges_of(const PoolId& id) {
  AddressRanges live;
  for (const BlockView& block : device_.report().live_blocks(id)) {
    live.add(block.ptr, block.size);
  }
  return live;
}

AddressRanges GraphMemory::backed_ranges_of(const PoolId& id) {
  AddressRanges backed;
  for (Heap* heap : parts_.pools.heaps_of(id)) {
    backed.unite(heap->backed_ranges());
  }
  return backed;
}

AllocateResult GraphMemory::allocate(const PoolId& id, StreamId stream, const Request& request,
                                     InCapture in) {
  if (!any()) {
    AllocateResult result = device_.allocate(id, stream, request);
    if (result.ptr != kNull) {
      note_captured(id, capture_of(id, stream, in), result.ptr, request.size);
    }
    return result;
  }
  const RecursiveMutexLock lock(climb_mutex_);
  for (;;) {
    AllocateResult result = allocate_unrecorded(id, stream, request);
    if (result.ptr == kNull || record(id, stream, result, request.size, in)) {
      return result;
    }
  }
}

AllocateResult GraphMemory::allocate_at(const PoolId& id, StreamId stream, DevicePtr ptr,
                                        const Request& request) {
  const RecursiveMutexLock lock(climb_mutex_);
  AllocateResult result = device_.allocate_at(id, stream, ptr, request);
  const bool given =
      result.ptr == kNull || record(id, stream, result, request.size, InCapture::kNo);
  return given ? std::move(result) : AllocateResult{};
}

// What a capture is expected to keep is packed into pages of the pool's own. All else begins and
// ends with pages: what lives in spite of it has no more of them than it fills, and what dies
// leaves whole ones, of which any later request is put together.
AllocateResult GraphMemory::allocate_unrecorded(const PoolId& id, StreamId stream,
                                                Request request) {
  HeapKind kind = heap_kind(request.size);
  const GraphPool* pool = parts_.captures.load() != 0 ? find(id) : nullptr;
  if (pool != nullptr && pool->borrows()) {
    if (pool->lifetimes.of(pool->given.size()) == Lifetime::kSurvives) {
      // What small blocks have left of the pool's own pages comes before a page for those kept.
      if (kind == HeapKind::kSmallPages) {
        const DevicePtr ptr = parts_.pools.arena(id, stream, kind).allocate_hit(request);
        if (ptr != kNull && is_on_own_pages(ptr)) {
          return {ptr, request.size, nullptr};
        }
      }
      kind = HeapKind::kKeptPages;
    } else if (is_large(request.size)) {
      request.size = align_up(request.size, parts_.config.page_bytes);
    }
  }
  return device_.allocate(id, stream, kind, request);
}

// False: on a page that the capture borrowed; it is free again.
bool GraphMemory::is_on_own_pages(DevicePtr ptr) {
  Span& span = *parts_.addresses.find(ptr);
  Heap& heap = *span.heap();
  const std::optional<BlockView> block = heap.live_block_at(span, ptr);
  if (block && !heap.is_borrowed(span, ptr, block->size)) {
    return true;
  }
  heap.undo_allocation(span, ptr);
  return false;
}

// False: the pool may not have the block, which is free again.
bool GraphMemory::record(const PoolId& id, StreamId stream, const AllocateResult& result,
                         std::size_t requested, InCapture in) {
  GraphPool* pool = find(id);
  Span* span = parts_.addresses.find(result.ptr);
  if (pool == nullptr || !pool->is_tracked || span == nullptr) {
    note_captured(id, capture_of(id, stream, in), result.ptr, requested);
    return true;
  }
  const std::optional<BlockView> block = span->heap()->live_block_at(*span, result.ptr);
  if (block && !may_have(*pool, *span, *block)) {
    return false;
  }
  const std::uint64_t capture = capture_of(id, stream, in);
  if (pool->records_order()) {
    pool->given.push_back({result.ptr, requested, block ? block->size : 0, capture});
    return true;
  }
  if (block && pool->first == GraphPool::First::kEnded) {
    pool->written.add(block->ptr, block->size);
  }
  note_captured(id, capture, result.ptr, requested);
  return true;
}

// False: a graph of the pool may write there, or, outside of a capture, the block is on pages of a
// set that an earlier capture has freed. The block is retired.
bool GraphMemory::may_have(const GraphPool& pool, Span& span, const BlockView& block) {
  if (!pool.loan) {
    return true;
  }
  Heap& heap = *span.heap();
  AddressRanges refused;
  if (!pool.borrows() && heap.is_borrowed(span, block.ptr, block.size)) {
    refused.add(block.ptr, block.size);
  } else if (pool.borrows() && pool.written.overlaps(block.ptr, block.size)) {
    refused = pool.written;
  } else {
    return true;
  }
  heap.undo_allocation(span, block.ptr);
  heap.retire_free(refused);
  return false;
}

// A library may capture unannounced. The pages of the pool stay from the first capture on, also
// after a refused query. Then the block is handed out, and the sizes of the graph lack it.
std::uint64_t GraphMemory::capture_of(const PoolId& id, StreamId stream, InCapture in) {
  std::uint64_t capture = 0;
  try {
    capture = parts_.driver.capture_info(stream).id;
  } catch (const DriverError&) {
    expect_graphs(id);
    return 0;
  }
  if (capture != 0) {
    expect_graphs(id);
  }
  return in == InCapture::kYes ? capture : 0;
}

void GraphMemory::expect_graphs(const PoolId& id) {
  {
    const MutexLock lock(records_mutex_);
    if (find(id) != nullptr) {
      return;
    }
  }
  const RecursiveMutexLock lock(climb_mutex_);
  pool_of(id);
}

void GraphMemory::note_captured(const PoolId& id, std::uint64_t capture, DevicePtr ptr,
                                std::size_t bytes) {
  if (capture == 0) {
    return;
  }
  for (;;) {
    {
      const MutexLock lock(records_mutex_);
      if (GraphPool* pool = find(id)) {
        pool->note_captured(capture, ptr, bytes);
        return;
      }
    }
    expect_graphs(id);
  }
}

void GraphMemory::note_foreign(const PoolId& id, StreamId stream, DevicePtr ptr,
                               std::size_t bytes) {
  note_captured(id, capture_of(id, stream, InCapture::kYes), ptr, bytes);
}

void GraphMemory::close_order(GraphPool& pool) {
  const MutexLock lock(records_mutex_);
  pool.close_order();
}

CapturedRanges GraphMemory::captured_of(const PoolId& id, Places places) {
  const RecursiveMutexLock lock(climb_mutex_);
  const GraphPool* pool = find(id);
  if (pool == nullptr) {
    return {};
  }
  CapturedRanges captured;
  {
    const MutexLock records_lock(records_mutex_);
    captured = pool->captured;
  }
  for (const GraphPool::Given& each : pool->given) {
    if (each.capture != 0) {
      captured[each.capture].add(each.ptr, each.requested);
    }
  }
  if (places == Places::kCurrent) {
    for (auto& [capture, ranges] : captured) {
      ranges = pool->moved.follow(std::move(ranges));
    }
  }
  return captured;
}

AddressRanges GraphMemory::addresses_of_capture(const PoolId& id, std::uint64_t capture,
                                                Places places) {
  return std::move(captured_of(id, places)[capture]);
}

GraphSizes GraphMemory::sizes_of(const PoolId& id, std::uint64_t capture,
                                 std::span<const BlockView> live) {
  return sizes_of_graph(captured_of(id, Places::kCurrent), capture, live);
}

std::size_t GraphMemory::shared_bytes(const PoolId& id) {
  return shared_bytes_of(captured_of(id, Places::kCurrent));
}

void GraphMemory::forget_capture(const PoolId& id, std::uint64_t capture) {
  const MutexLock lock(records_mutex_);
  if (GraphPool* pool = find(id)) {
    pool->captured.erase(capture);
  }
}

void GraphMemory::release(GraphPool& pool) {
  pool.carried.forget();
  std::ranges::move(pool.moved.take_except({}), std::back_inserter(gone_moves_));
  pool.first = GraphPool::First::kNone;
  pool.lifetimes = {};
  update_tracked(pool);
  {
    const MutexLock lock(records_mutex_);
    pool.captured.clear();
  }
  if (pool.borrows()) {
    return;
  }
  pool.given.clear();
  pool.written.clear();
  std::ranges::move(pool.uses, std::back_inserter(pool.gone));
  pool.uses.clear();
  if (pool.is_member()) {
    for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
      heap->unretire_all();
    }
  }
}

void GraphMemory::on_last_release(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  GraphPool* pool = find(id);
  if (pool == nullptr) {
    return;
  }
  release(*pool);
  if (!pool->is_member() && !pool->is_of_tree() && parts_.pools.heaps_of(id).empty()) {
    const MutexLock records_lock(records_mutex_);
    pools_.erase(id);
  }
}

void GraphMemory::forget_gone_pools() {
  std::vector<PoolId> gone;
  for (const auto& [id, pool] : pools_) {
    if (!pool.is_member() && !pool.is_of_tree() && !pool.is_tracked &&
        parts_.pools.use_count(id) < 0) {
      gone.push_back(id);
    }
  }
  const MutexLock lock(records_mutex_);
  for (const PoolId& id : gone) {
    if (const auto pool = pools_.find(id); pool->second.captured.empty()) {
      pools_.erase(pool);
    }
  }
}

bool GraphMemory::expect_checkpoints(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  GraphPool& pool = pool_of(id);
  if (pool.is_of_tree()) {
    return true;
  }
  if (pool.loan) {
    return false;
  }
  // What a member has shared is a part of the scratch of its graphs, of which the rest may be here.
  if (const bool is_known = pool.carried.expect_checkpoints(); !is_known || pool.is_member()) {
    pool.carried.settle(backed_ranges_of(id));
  }
  close_order(pool);
  pool.lifetimes = {};
  if (!pool.is_member()) {
    pool.first = GraphPool::First::kNone;
    pool.written.clear();
    update_tracked(pool);
  }
  return true;
}

bool GraphMemory::is_of_tree(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const GraphPool* pool = find(id);
  return pool != nullptr && pool->is_of_tree();
}

void GraphMemory::on_checkpoint(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  pool_of(id).carried.on_checkpoint(live_ranges_of(id));
  try {
    if (parts_.captures.load() == 0) {
      collect();
    }
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): it is shared later
  }
}

void GraphMemory::on_restore(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  pool_of(id).carried.on_restore(live_ranges_of(id));
}

void GraphMemory::collect(News news) {
  forget_gone_pools();
  // Scratch that is asleep is not mapped.
  const auto is_awake = [](const GraphPool& pool) {
    return !pool.is_member() || !pool.set->is_asleep();
  };
  const auto is_new = [&](const GraphPool& pool) {
    return news == News::kShared && has_news(pool) && is_awake(pool);
  };
  for (auto& [id, pool] : pools_) {
    const bool is_unsettled = pool.loan && !pool.loan->is_running && !pool.loan->is_ending;
    if (is_unsettled && !share_dead_borrowed(pool, pool.gone, Folding::kMayNot)) {
      pool.loan.reset();
    }
  }
  const bool any = std::ranges::any_of(pools_, [&](const auto& entry) {
    return (!entry.second.gone.empty() && is_awake(entry.second)) || is_new(entry.second);
  });
  if ((!any && gone_moves_.empty()) || !parts_.timeline.wait_for_all()) {
    return;
  }
  std::erase_if(gone_moves_, [](const AliasedBlock& old) {
    return old.block->span->heap()->remove_alias(old.block);
  });
  for (auto& [id, pool] : pools_) {
    if (!pool.is_member() || !is_awake(pool)) {
      continue;
    }
    pool.set->remove_uses(pool.gone);
    pool.set->settle_accounts();
    if (is_new(pool)) {
      pool.set->fold(share_what_is_not_carried(pool));
    }
  }
}

bool GraphMemory::prepare_release(const PoolId& id) {
  GraphPool* pool = find(id);
  if (pool == nullptr) {
    return true;
  }
  if (pool->loan || keeps_aliased(id)) {
    return false;
  }
  if (pool->is_member()) {
    retire_written(*pool);
  }
  return true;
}

bool GraphMemory::keeps_aliased(const PoolId& id) const {
  const GraphPool* pool = find(id);
  // Old addresses that `collect` has still to unmap count too.
  const bool any_gone = std::ranges::any_of(
      gone_moves_, [&](const AliasedBlock& old) { return old.block->span->heap()->pool() == id; });
  return pool != nullptr &&
         (any_gone || pool->moved.any() ||
          (pool->is_member() && std::ranges::any_of(pool->set->handles(), [&](const auto& entry) {
             return entry.second.kept_by == id;
           })));
}

std::set<PageHandle> GraphMemory::shared_handles() const {
  std::set<PageHandle> shared;
  for (const auto& [group, set] : sets_) {
    for (const auto& [handle, users] : set.handles()) {
      shared.insert(handle);
    }
  }
  for (const auto& [id, pool] : pools_) {
    shared.merge(pool.moved.handles());
  }
  for (const AliasedBlock& old : gone_moves_) {
    for (const HandleRange& range : old.handles) {
      shared.insert(range.handle);
    }
  }
  return shared;
}

std::size_t GraphMemory::pages_of(const PoolId& id) const {
  const GraphPool* pool = find(id);
  const bool is_home = pool != nullptr && pool->is_member() && pool->set->home() == pool;
  return is_home ? pool->set->home_pages() : 0;
}

std::size_t GraphMemory::pages() const {
  std::size_t pages = 0;
  for (const auto& [group, set] : sets_) {
    pages += set.home_pages();
  }
  return pages;
}

void GraphMemory::check_invariants() const {
  const std::size_t page_bytes = parts_.store.page_bytes();
  std::map<const ScratchSet*, std::map<PageHandle, std::set<User>>> users;
  for (const auto& [id, pool] : pools_) {
    FERRO_CHECK(pool.is_tracked == pool.should_be_tracked());
    if (pool.moved.any()) {
      check_moved(pool);
    }
    if (!pool.is_member()) {
      FERRO_CHECK(pool.uses.empty() && pool.gone.empty() && !pool.loan);
      continue;
    }
    const ScratchSet::Handles& handles = pool.set->handles();
    const auto count = [&, set = pool.set](const HandleRange& range, User user) {
      FERRO_CHECK(handles.contains(range.handle) && handles.at(range.handle).pages == range.pages);
      FERRO_CHECK(users[set][range.handle].insert(user).second);
    };
    for (const std::vector<ScratchUse>* uses : {&pool.uses, &pool.gone}) {
      for (const ScratchUse& use : *uses) {
        FERRO_CHECK(use.range.block->state == BlockState::kAliased);
        FERRO_CHECK(pages_in(use.range.handles) * page_bytes == use.range.block->size);
        for (const HandleRange& range : use.range.handles) {
          count(range, use.user);
        }
      }
    }
    for (Heap* heap : parts_.pools.heaps_of(id)) {
      for (const Heap::PlacedHandle& borrowed : heap->borrowed()) {
        FERRO_CHECK(pool.loan.has_value());
        count(borrowed.range, pool.loan->user);
      }
    }
  }
  for (const auto& [group, set] : sets_) {
    for (const auto& [handle, shared] : set.handles()) {
      FERRO_CHECK(!shared.users.empty() && shared.users == users[&set][handle]);
    }
    const std::size_t pages = set.held_pages();
    FERRO_CHECK(pages == set.home_pages() && (pages == 0 || set.home() != nullptr));
  }
}

void GraphMemory::check_moved(const GraphPool& pool) const {
  std::set<PageHandle> own;
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    own.merge(heap->own_handles());
  }
  if (pool.is_member()) {
    for (const auto& [handle, shared] : pool.set->handles()) {
      if (shared.only == pool.id) {
        own.insert(handle);
      }
    }
  }
  pool.moved.check_invariants(parts_.store.page_bytes(), own);
}

}  // namespace ferro
