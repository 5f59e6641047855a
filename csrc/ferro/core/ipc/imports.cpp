#include "ferro/core/ipc/imports.h"

#include "ferro/driver/error.h"

#include <numeric>
#include <utility>

namespace ferro {

ForeignHandles::~ForeignHandles() {
  for (const Handle& handle : handles_) {
    driver_.release(handle.page);
  }
}

void ForeignHandles::import(ForeignKind kind, const void* shared, std::size_t bytes) {
  if (handles_.size() == handles_.capacity()) {
    handles_.reserve(2 * handles_.size() + 1);  // before the import, which would be lost
  }
  handles_.push_back({driver_.import_page(kind, shared), bytes});
}

// `*mapped`: the bytes that are mapped, also after a failure.
Status Imports::map_all(DevicePtr base, const ForeignHandles& handles, std::size_t* mapped) {
  for (const ForeignHandles::Handle& handle : handles.handles_) {
    if (const Status status = driver_.map(base + *mapped, handle.bytes, handle.page);
        status != Status::kOk) {
      return status;
    }
    *mapped += handle.bytes;
  }
  return driver_.set_access(base, *mapped);
}

DevicePtr Imports::open(const ForeignHandles& handles) {
  const MutexLock lock(mutex_);
  close_waiting();
  std::size_t bytes = 0;
  std::vector<std::size_t> sizes;
  for (const ForeignHandles::Handle& handle : handles.handles_) {
    bytes += handle.bytes;
    sizes.push_back(handle.bytes);
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
    if (map_all(*base, handles, &mapped) != Status::kOk) {
      undo();
      return kNull;
    }
    open_.emplace(*base, std::move(sizes));
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
    // The device has failed, and runs no more work.
  }
  std::erase_if(waiting_, [this](DevicePtr base) FERRO_REQUIRES(mutex_) {
    const auto range = open_.find(base);
    const std::size_t bytes =
        std::accumulate(range->second.begin(), range->second.end(), std::size_t{0});
    if (!driver_.unmap(base, bytes)) {
      return false;
    }
    driver_.unreserve(base, bytes);
    open_.erase(range);
    return true;
  });
}

void Imports::grant(DeviceId to) {
  const MutexLock lock(mutex_);
  for (const auto& [base, sizes] : open_) {
    DevicePtr at = base;
    for (const std::size_t bytes : sizes) {
      driver_.grant(at, bytes, to);
      at = at + bytes;
    }
  }
}

std::size_t Imports::count() {
  const MutexLock lock(mutex_);
  return open_.size();
}

}  // namespace ferro
