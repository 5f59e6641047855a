// Changes of the mappings behind addresses of graphs: other handles, or none.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"
#include "ferro/driver/error.h"

namespace ferro {

Status Heap::remap(DevicePtr begin, std::span<const HandleRange> old,
                   std::span<const HandleRange> fresh) {
  const std::size_t bytes = pages_in(old) * page_bytes_;
  if (!context_.driver.unmap(begin, bytes)) {
    return Status::kOutOfMemory;
  }
  const auto restore = [&] {
    Status status = Status::kOutOfMemory;
    try {
      status = map(begin, old);
    } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the check reports it
    }
    FERRO_CHECK(status == Status::kOk, "the driver refused to map the pages of a graph again");
  };
  Status status = Status::kOk;
  try {
    status = map(begin, fresh);
  } catch (const DriverError&) {
    restore();
    throw;
  }
  if (status != Status::kOk) {
    restore();
  }
  return status;
}

bool Heap::unmap_alias(const Block& block) {
  {
    const HeapLock lock(mutex_);
    notify_of_range(block.ptr, block.size, MemoryEvent::kUnmapped, nullptr, {.reason = "released"});
  }
  const bool unmapped = context_.driver.unmap(block.ptr, block.size);
  const HeapLock lock(mutex_);
  if (!unmapped) {
    notify_of_range(block.ptr, block.size, MemoryEvent::kMapped, nullptr, {.reason = "put_back"});
    return false;
  }
  forget_mapping(block.ptr, block.size);
  unmapped_aliases_.insert(block.ptr);
  return true;
}

Status Heap::map_alias(const Block& block, std::span<const HandleRange> handles) {
  const Status status = map(block.ptr, handles);
  if (status == Status::kOk) {
    const HeapLock lock(mutex_);
    unmapped_aliases_.erase(block.ptr);
    notify_of_range(block.ptr, block.size, MemoryEvent::kMapped, nullptr, {.reason = "woken"});
  }
  return status;
}

bool Heap::remove_alias(Block* block) {
  const bool unmapped = unmap_alias(*block);
  if (unmapped) {
    {
      const HeapLock lock(mutex_);
      unmapped_aliases_.erase(block->ptr);
    }
    on_mapping_removed(block);
  }
  return unmapped;
}

}  // namespace ferro
