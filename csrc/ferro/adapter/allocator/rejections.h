// Requests that are refused at once, without a release or a wait, because they would exceed the
// memory fraction, as the setting `throw_on_cudamalloc_oom` demands.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/core/policy/report.h"

#include <cstddef>
#include <string>
#include <vector>

namespace ferro {

// The limit of a device, in bytes; PageStore::kNoLimit while the setting is off.
std::size_t rejection_limit(std::size_t total_memory);

// PyTorch's sentence, then the held memory and how to change the setting.
std::string rejection_message(const OutOfMemoryFacts& facts);

// Called without a lock. Exceptions of observers are only logged, so that the program sees the
// out-of-memory error.
void notify_of_rejection(const std::vector<OomRejectionObserver>& observers,
                         const OutOfMemoryFacts& facts);

}  // namespace ferro
