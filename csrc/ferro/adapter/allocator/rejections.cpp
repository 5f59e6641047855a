#include "ferro/adapter/allocator/rejections.h"

#include "ferro/adapter/torch/convert.h"
#include "ferro/core/pages/page_store.h"

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>

#include <exception>

namespace ferro {

std::size_t rejection_limit(std::size_t total_memory) {
  if (!rejects_before_driver()) [[likely]] {
    return PageStore::kNoLimit;
  }
  const double fraction =
      c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::per_process_memory_fraction();
  return to_bytes(fraction, total_memory);
}

std::string rejection_message(const OutOfMemoryFacts& facts) {
  using c10::CachingAllocator::format_size;
  return "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
         "per_process_memory_fraction limit. Requested size: " +
         format_size(facts.request) + ". ferro_alloc holds " + format_size(facts.held) + " of " +
         format_size(facts.rejected_beyond.value_or(0)) +
         " allowed, and its free memory does not suffice. Set throw_on_cudamalloc_oom:False to "
         "release memory and wait for it first.";
}

void notify_of_rejection(const std::vector<OomRejectionObserver>& observers,
                         const OutOfMemoryFacts& facts) {
  for (const OomRejectionObserver& observer : observers) {
    try {
      observer(facts.device, facts.request, facts.held, facts.capacity);
    } catch (const std::exception& error) {
      LOG(WARNING) << "Exception in OOM rejection observer: " << error.what();
    } catch (...) {
      LOG(WARNING) << "Unknown exception in OOM rejection observer";
    }
  }
}

}  // namespace ferro
