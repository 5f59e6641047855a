// What is mapped behind the addresses of graphs: other handles, or none.
#include "ferro/base/check.h"
#include "ferro/core/heap/arena_scratch.h"
#include "ferro/driver/error.h"

namespace ferro {

Status ArenaScratch::remap(DevicePtr begin, std::span<const HandleRange> old,
                           std::span<const HandleRange> fresh) {
  const std::size_t bytes = pages_in(old) * heap_.page_bytes_;
  if (!heap_.context_.driver.unmap(begin, bytes)) {
    return Status::kOutOfMemory;
  }
  const auto restore = [&] {
    Status status = Status::kOutOfMemory;
    try {
      status = heap_.map(begin, old);
    } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the check says it
    }
    FERRO_CHECK(status == Status::kOk, "the driver refused to map the pages of a graph again");
  };
  Status status = Status::kOk;
  try {
    status = heap_.map(begin, fresh);
  } catch (const DriverError&) {
    restore();
    throw;
  }
  if (status != Status::kOk) {
    restore();
  }
  return status;
}

std::vector<PageRun> ArenaHeap::mapped_parts(const Block& block) {
  std::vector<PageRun> parts;
  DevicePtr begin = block.ptr;
  const auto end_at = [&](DevicePtr end) {
    if (begin < end) {
      parts.push_back({begin, distance(begin, end)});
    }
  };
  absent_.for_each_inside(block.ptr, block.size, [&](DevicePtr ptr, std::size_t bytes) {
    end_at(ptr);
    begin = ptr + bytes;
  });
  end_at(block.end());
  return parts;
}

bool ArenaScratch::remove_alias(Block* block) {
  std::vector<PageRun> mapped;
  {
    const HeapLock lock(heap_.mutex_);
    mapped = heap_.mapped_parts(*block);
  }
  for (const PageRun& part : mapped) {
    if (!make_absent(part.begin, part.bytes, "released")) {
      return false;
    }
  }
  {
    const HeapLock lock(heap_.mutex_);
    heap_.absent_.remove(block->ptr, block->size);
    heap_.forget_mapping(block->ptr, block->size);
  }
  heap_.on_mapping_removed(block);
  return true;
}

bool ArenaScratch::make_absent(DevicePtr begin, std::size_t bytes, const char* reason) {
  {
    const HeapLock lock(heap_.mutex_);
    heap_.notify_of_range(begin, bytes, MemoryEvent::kUnmapped, nullptr, {.reason = reason});
  }
  const bool unmapped = heap_.context_.driver.unmap(begin, bytes);
  const HeapLock lock(heap_.mutex_);
  if (unmapped) {
    heap_.absent_.add(begin, bytes);
  } else {
    heap_.notify_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = "put_back"});
  }
  return unmapped;
}

Status ArenaScratch::make_present(DevicePtr begin, std::span<const HandleRange> handles) {
  const Status status = heap_.map(begin, handles);
  if (status == Status::kOk) {
    const std::size_t bytes = pages_in(handles) * heap_.page_bytes_;
    const HeapLock lock(heap_.mutex_);
    heap_.absent_.remove(begin, bytes);
    heap_.notify_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = "taken_back"});
  }
  return status;
}

bool ArenaScratch::is_absent(DevicePtr begin) {
  const HeapLock lock(heap_.mutex_);
  return heap_.absent_.meets(begin, 1);
}

bool ArenaScratch::is_all_absent(const Block& block) {
  const HeapLock lock(heap_.mutex_);
  return heap_.mapped_parts(block).empty();
}

}  // namespace ferro
