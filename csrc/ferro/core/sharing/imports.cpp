#include "ferro/core/sharing/imports.h"

#include "ferro/driver/error.h"

namespace ferro {

// `*mapped` counts the bytes that are mapped, also when it fails.
Status Imports::map_all(DevicePtr base, std::span<const ForeignUnit> units, std::size_t* mapped) {
  for (const ForeignUnit& unit : units) {
    const PageHandle page = driver_.import_page(unit.kind, unit.shared);
    Status status = Status::kOutOfMemory;
    try {
      status = driver_.map(base + *mapped, unit.bytes, page);
    } catch (...) {
      driver_.release(page);
      throw;
    }
    // The mapping keeps the memory.
    driver_.release(page);
    if (status != Status::kOk) {
      return status;
    }
    *mapped += unit.bytes;
  }
  return driver_.set_access(base, *mapped);
}

DevicePtr Imports::open(std::span<const ForeignUnit> units) {
  const MutexLock lock(mutex_);
  close_waiting();
  std::size_t bytes = 0;
  for (const ForeignUnit& unit : units) {
    bytes += unit.bytes;
  }
  const std::optional<DevicePtr> base = driver_.reserve(bytes, 0);
  if (!base) {
    return kNull;
  }
  std::size_t mapped = 0;
  const auto undo = [&] {
    if (mapped == 0 || driver_.unmap(*base, mapped)) {
      driver_.unreserve(*base, bytes);
    }
  };
  try {
    if (map_all(*base, units, &mapped) != Status::kOk) {
      undo();
      return kNull;
    }
    open_.emplace(*base, bytes);
  } catch (...) {
    undo();
    throw;
  }
  return *base;
}

void Imports::close(DevicePtr base) noexcept {
  const MutexLock lock(mutex_);
  waiting_.push_back(base);
  close_waiting();
}

void Imports::collect() noexcept {
  const MutexLock lock(mutex_);
  close_waiting();
}

void Imports::close_waiting() noexcept {
  if (waiting_.empty()) {
    return;
  }
  try {
    if (!wait_for_device_()) {
      return;
    }
  } catch (const DriverError&) {
    // The device has failed, and no work of it comes after this.
  }
  std::erase_if(waiting_, [this](DevicePtr base) FERRO_REQUIRES(mutex_) {
    const auto range = open_.find(base);
    if (!driver_.unmap(base, range->second)) {
      return false;
    }
    driver_.unreserve(base, range->second);
    open_.erase(range);
    return true;
  });
}

void Imports::grant(DeviceId to) {
  const MutexLock lock(mutex_);
  for (const auto& [base, bytes] : open_) {
    driver_.grant(base, bytes, to);
  }
}

std::size_t Imports::count() {
  const MutexLock lock(mutex_);
  return open_.size();
}

}  // namespace ferro
