// Requests that the core could not serve: notifies observers and throws the error.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/device_view.h"
#include "ferro/adapter/torch/convert.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <utility>

namespace ferro {

void CudaAllocator::fail_allocation(Device& owner, c10::DeviceIndex index, const PoolId& pool,
                                    StreamId stream, const Request& request,
                                    const OutOfMemoryFacts& facts) {
  std::vector<History::FailureObserver> observers;
  std::vector<OomRejectionObserver> rejection_observers;
  {
    const MutexLock lock(init_mutex_);
    observers = failure_observers_;
    rejection_observers = rejection_observers_;
  }
  if (facts.rejected_beyond) {
    notify_of_rejection(rejection_observers, facts);
    TORCH_CHECK_WITH(OutOfMemoryError, false, rejection_message(facts));
  }
  if (observed_.load(std::memory_order_relaxed)) {
    owner.history.on_out_of_memory(facts.device_free, request.size, stream, pool, request.context);
  }
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(facts.request),
                                   owner.core.stats().read()[kBytes][kAll].current, facts.held,
                                   c10::Device(c10::kCUDA, index));
  for (const History::FailureObserver& observer : observers) {
    observer(index, facts.request, facts.limit.value_or(facts.capacity), facts.device_free);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, record_failure(owner, index, facts));
}

namespace {

// Called without locks. O(live blocks).
CallSites live_call_sites(const History& history, DeviceMemory& core) {
  if (!history.gathers()) {
    return {};
  }
  try {
    const std::unique_ptr<CallSiteSums> sums = make_call_site_sums();
    if (sums == nullptr) {
      return {};
    }
    core.report().visit_live([&](const BlockView& block) {
      if (!block.is_asleep) {
        sums->add(block.size, block.context);
      }
    });
    return sums->name();
  } catch (const std::bad_alloc&) {
    return {};  // the host lacks memory; the error omits the call sites
  }
}

}  // namespace

// Live memory by tag, without blocks that are asleep.
std::vector<TagTotal> CudaAllocator::awake_tags(Device& owner, c10::DeviceIndex index) const {
  std::vector<TagTotal> totals = tags(index);
  std::map<BlockTag, BlockTotal> asleep;
  owner.core.report().visit_live([&](const BlockView& block) {
    if (block.is_asleep) {
      asleep[block.tag].add({block.size, 1});
    }
  });
  for (TagTotal& tag : totals) {
    // Blocks may have been requested since the sums were read.
    tag.total.bytes -= std::min(tag.total.bytes, asleep[tag.tag].bytes);
    tag.total.blocks -= std::min(tag.total.blocks, asleep[tag.tag].blocks);
  }
  std::erase_if(totals, [](const TagTotal& tag) { return tag.total.blocks == 0; });
  std::ranges::sort(totals, std::ranges::greater{},
                    [](const TagTotal& tag) { return tag.total.bytes; });
  return totals;
}

std::string CudaAllocator::label_of_pool(const PoolId& id, const std::string& name) {
  return name.empty() ? to_text(id) : "'" + name + "'";
}

std::vector<PoolShare> CudaAllocator::pool_shares(c10::DeviceIndex index) const {
  std::vector<PoolShare> shares;
  for (const PrivatePool& pool : private_pools(index)) {
    if (pool.sizes.private_bytes == 0) {
      continue;  // all of it is asleep
    }
    shares.push_back({label_of_pool(pool.id, pool.name), pool.sizes});
  }
  std::ranges::sort(shares, std::ranges::greater{},
                    [](const PoolShare& pool) { return pool.sizes.private_bytes; });
  return shares;
}

std::string CudaAllocator::message_of_failed_previous(Device& owner, c10::DeviceIndex index,
                                                      std::size_t bytes,
                                                      const std::string& pool_with_allocator) {
  const std::size_t wanted = allocation_size(round_size(bytes), Layout::kSegments, page_bytes_);
  OutOfMemoryFacts facts = owner.core.report().facts_of_failure(wanted);
  facts.pool_with_allocator = pool_with_allocator;
  return record_failure(owner, index, facts);
}

std::string CudaAllocator::message_of_failed_wake(c10::DeviceIndex index, std::size_t bytes) {
  Device& owner = device(index);
  return record_failure(owner, index, owner.core.report().facts_of_failure(bytes));
}

std::string CudaAllocator::record_failure(Device& owner, c10::DeviceIndex index,
                                          const OutOfMemoryFacts& facts) {
  Failure failure = to_failure(owner, index, facts);
  std::string message = failure.message;
  failures_.add(std::move(failure));
  return message;
}

// Adds the facts of the previous allocator, which the core does not know.
Failure CudaAllocator::to_failure(Device& owner, c10::DeviceIndex index,
                                  const OutOfMemoryFacts& facts) {
  Failure failure;
  failure.facts = facts;
  failure.facts.previous_held = previous_.reserved_bytes(index);
  failure.facts.previous_live = previous_.allocated_bytes(index);
  if (failure.facts.previous_held != 0) {
    failure.previous = previous_.allocator().name();
  }
  if (const std::size_t limit = limit_of_both(owner); limit != PageStore::kNoLimit) {
    failure.facts.limit = limit;
  }
  const DeviceMemory::SleepView sleep = owner.core.sleep_view();
  failure.facts.asleep = sleep.asleep_bytes;
  failure.facts.saved = sleep.saved_bytes;
  failure.pools = pool_shares(index);
  failure.call_sites = live_call_sites(owner.history, owner.core);
  failure.tags = sleep.asleep_bytes != 0 ? awake_tags(owner, index) : tags(index);
  failure.message = out_of_memory_message(failure.facts) + describe_pools(failure) +
                    describe_previous(failure) + " Try " + advice(failure.facts) + "." +
                    describe_call_sites(failure) + describe_tags(failure);
  return failure;
}

}  // namespace ferro
