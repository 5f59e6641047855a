// Requests that are refused at once, without a release or a wait, because they would exceed the
// memory fraction, as the setting `throw_on_cudamalloc_oom` demands.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/base/mutex.h"
#include "ferro/core/policy/report.h"

#include <cstddef>
#include <string>
#include <vector>

namespace ferro {

// The limit of a device, in bytes; PageStore::kNoLimit while the setting is off.
std::size_t rejection_limit(std::size_t total_memory);

// PyTorch's sentence, then the held memory and how to change the setting.
std::string rejection_message(const OutOfMemoryFacts& facts);

// Thread-safe. Observers are called without a lock. Their exceptions are only logged, so that the
// program sees the out-of-memory error.
class RejectionObservers {
 public:
  void add(OomRejectionObserver observer) FERRO_EXCLUDES(mutex_);
  std::vector<OomRejectionObserver> all() const FERRO_EXCLUDES(mutex_);
  void notify(const OutOfMemoryFacts& facts) const FERRO_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<OomRejectionObserver> observers_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
