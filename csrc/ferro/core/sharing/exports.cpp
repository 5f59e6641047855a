#include "ferro/core/sharing/exports.h"

#include <atomic>
#include <fcntl.h>
#include <unistd.h>

namespace ferro {

ExportTable::~ExportTable() {
  for (const auto& [id, descriptor] : descriptors_) {
    close(descriptor);
  }
}

std::uint64_t ExportTable::add(int descriptor) {
  static std::atomic<std::uint64_t> last_id{0};
  const std::uint64_t id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  const MutexLock lock(mutex_);
  descriptors_.emplace(id, descriptor);
  return id;
}

void ExportTable::retire(std::uint64_t id) {
  const MutexLock lock(mutex_);
  if (const auto found = descriptors_.find(id); found != descriptors_.end()) {
    close(found->second);
    descriptors_.erase(found);
  }
}

int ExportTable::descriptor(std::uint64_t id) {
  const MutexLock lock(mutex_);
  const auto found = descriptors_.find(id);
  return found == descriptors_.end() ? -1 : found->second;
}

DuplicateResult ExportTable::duplicate(std::uint64_t id, int* copy) {
  const MutexLock lock(mutex_);
  const auto found = descriptors_.find(id);
  if (found == descriptors_.end()) {
    return DuplicateResult::kRetired;
  }
  *copy = fcntl(found->second, F_DUPFD_CLOEXEC, 0);
  return *copy < 0 ? DuplicateResult::kNoDescriptors : DuplicateResult::kOk;
}

std::size_t ExportTable::count() {
  const MutexLock lock(mutex_);
  return descriptors_.size();
}

}  // namespace ferro
