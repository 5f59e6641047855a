#include "sim/memory/host_memory.h"

#include "sim/memory/find_range.h"

#include <sys/mman.h>

namespace ferro::sim {

HostMemory::~HostMemory() {
  for (const auto& [base, range] : ranges_) {
    if (range.kind != Kind::kRegistered) {
      munmap(reinterpret_cast<void*>(base), range.bytes);
    }
  }
}

void* HostMemory::allocate(std::size_t bytes, Kind kind, unsigned flags, int device) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(memory);
  ranges_.emplace(base, Range{base, bytes, kind, flags, device});
  return memory;
}

bool HostMemory::free(const void* at, Kind kind) {
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == ranges_.end() || found->second.kind != kind) {
    return false;
  }
  munmap(reinterpret_cast<void*>(found->first), found->second.bytes);
  ranges_.erase(found);
  return true;
}

bool HostMemory::register_range(void* at, std::size_t bytes, unsigned flags, int device) {
  const auto base = reinterpret_cast<std::uintptr_t>(at);
  const auto next = ranges_.lower_bound(base);
  if (find(at) || (next != ranges_.end() && next->first < base + bytes)) {
    return false;
  }
  ranges_.emplace(base, Range{base, bytes, Kind::kRegistered, flags, device});
  return true;
}

bool HostMemory::unregister_range(const void* at) {
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == ranges_.end() || found->second.kind != Kind::kRegistered) {
    return false;
  }
  ranges_.erase(found);
  return true;
}

std::optional<HostMemory::Range> HostMemory::find(const void* at) const {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto found = find_range(ranges_, address, [](const Range& range) { return range.bytes; });
  return found == ranges_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace ferro::sim
