// Tags: sums by tag, and requests under limits of tags.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/history/request_tag.h"
#include "ferro/adapter/history/tag_limits.h"

#include <string>
#include <utility>

namespace ferro {

void CudaAllocator::count_tags() {
  if (has_tags_.load(std::memory_order_relaxed)) {
    return;
  }
  const MutexLock lock(init_mutex_);
  has_tags_.store(true);
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    device(i).history.count_tags();
  }
}

std::vector<TagTotal> CudaAllocator::tags(c10::DeviceIndex index, TagSums::Tags which) const {
  const TagSums* sums = device(index).history.tags();
  return sums != nullptr ? sums->read(which) : std::vector<TagTotal>{};
}

void CudaAllocator::follow_tag_limits() {
  count_tags();
  const MutexLock lock(init_mutex_);
  choose_observed();
}

void* CudaAllocator::allocate_limited(Device& owner, c10::DeviceIndex index,
                                      const KnownStreams::Slot& stream, const Request& request) {
  const Destination to = destination(owner, stream.handle);
  const TagSums* sums = owner.history.tags();
  if (to.route == Route::kOurs && sums != nullptr) {
    const BlockTag tag = tag_of_request(to.pool);
    if (tag != 0 && sums->exceeds(tag, request.size, tag_limits().hard(tag))) {
      refuse_beyond_limit(index, tag, request.requested);
    }
  }
  LimitedRequest limited;
  void* ptr = allocate_unlimited(owner, index, stream, request);
  if (limited.refused() != 0) {
    free(ptr);
    refuse_beyond_limit(index, limited.refused(), request.requested);
  }
  limited.run_callback();
  return ptr;
}

void CudaAllocator::refuse_beyond_limit(c10::DeviceIndex index, BlockTag tag,
                                        std::size_t requested) const {
  using c10::CachingAllocator::format_size;
  const TagTotal found = device(index).history.tags()->read_one(tag);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(requested), " with the tag '", found.name,
                   "', whose hard limit on each GPU is ", format_size(tag_limits().hard(tag)),
                   ": on GPU ", static_cast<int>(index), " it has ", format_size(found.total.bytes),
                   " live in ", found.total.blocks, found.total.blocks == 1 ? " block" : " blocks",
                   ". Free memory of this tag, or set another limit with "
                   "ferro_alloc.set_tag_limit().");
}

}  // namespace ferro
