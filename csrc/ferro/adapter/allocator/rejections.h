// Requests that are refused at once because they would exceed the memory fraction, as the setting
// `throw_on_cudamalloc_oom` asks for: nothing is given back for them and nobody waits.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/base/mutex.h"
#include "ferro/core/policy/report.h"

#include <cstddef>
#include <string>
#include <vector>

namespace ferro {

// Bytes of a device that has `total_memory`; PageStore::kNoLimit while the setting is off.
std::size_t rejection_limit(std::size_t total_memory);

// PyTorch's sentence, then how much is held and how to change it.
std::string rejection_message(const OutOfMemoryFacts& facts);

// Thread-safe. Observers are called without any lock held; what one throws reaches nobody, since
// the program is to see that it is out of memory.
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
