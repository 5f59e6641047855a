#include "ferro/core/ipc/exports.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace ferro {
namespace {

// The number of descriptors that the tables of all devices keep.
std::atomic<std::size_t> kept_descriptors{0};

bool try_reserve(std::size_t descriptors) {
  rlimit limit{};
  const std::size_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 2 : 0;
  std::size_t kept = kept_descriptors.load(std::memory_order_relaxed);
  do {
    if (kept > most || descriptors > most - kept) {
      return false;
    }
  } while (
      !kept_descriptors.compare_exchange_weak(kept, kept + descriptors, std::memory_order_relaxed));
  return true;
}

// No-op for -1.
void close_kept(int descriptor) {
  if (descriptor >= 0) {
    close(descriptor);
    kept_descriptors.fetch_sub(1, std::memory_order_relaxed);
  }
}

// Drivers have no error code for a lack of descriptors.
bool can_open_descriptors() {
  const int opened = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool is_full = opened < 0 && (errno == EMFILE || errno == ENFILE);
  if (opened >= 0) {
    close(opened);
  }
  return !is_full;
}

}  // namespace

ExportTable::~ExportTable() {
  for (const auto& [id, unit] : units_) {
    close_kept(unit.descriptor);
  }
}

std::vector<ExportTable::Entry> ExportTable::add(std::span<const PageHandle> handles) {
  static std::atomic<std::uint64_t> last_id{0};
  if (handles.empty()) {
    return {};
  }
  std::vector<Entry> added(handles.size());
  if (try_reserve(handles.size())) {
    try {
      std::ranges::transform(handles, added.begin(), [this](PageHandle handle) {
        return Entry{0, driver_.export_page(handle)};
      });
    } catch (const DriverError&) {
      const bool has_room = can_open_descriptors();
      for (const Entry& entry : added) {
        if (entry.descriptor >= 0) {
          close(entry.descriptor);
        }
      }
      kept_descriptors.fetch_sub(handles.size(), std::memory_order_relaxed);
      if (has_room) {
        throw;
      }
      // The program needs the rest of the limit. These descriptors are made on request.
      added.assign(handles.size(), Entry{});
    }
  }
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    added[i].id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
    units_.emplace(added[i].id, Unit{handles[i], added[i].descriptor});
  }
  return added;
}

void ExportTable::retire(std::uint64_t id) {
  const MutexLock lock(mutex_);
  if (const auto found = units_.find(id); found != units_.end()) {
    close_kept(found->second.descriptor);
    units_.erase(found);
  }
}

DuplicateResult ExportTable::duplicate(std::uint64_t id, int* copy) {
  const MutexLock lock(mutex_);
  const auto found = units_.find(id);
  if (found == units_.end()) {
    return DuplicateResult::kRetired;
  }
  const Unit& unit = found->second;
  if (unit.descriptor >= 0) {
    *copy = fcntl(unit.descriptor, F_DUPFD_CLOEXEC, 0);
    return *copy < 0 ? DuplicateResult::kNoDescriptors : DuplicateResult::kOk;
  }
  try {
    *copy = driver_.export_page(unit.handle);
    return DuplicateResult::kOk;
  } catch (const DriverError&) {
    return can_open_descriptors() ? DuplicateResult::kRefused : DuplicateResult::kNoDescriptors;
  }
}

bool ExportTable::contains(std::uint64_t id) {
  const MutexLock lock(mutex_);
  return units_.contains(id);
}

std::size_t ExportTable::count() {
  const MutexLock lock(mutex_);
  return units_.size();
}

}  // namespace ferro
