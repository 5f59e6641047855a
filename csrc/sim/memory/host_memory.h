// Host memory that the driver manages: page-locked allocations, registered ranges, managed memory.
//
// Not thread-safe; the machine's lock guards it. All other host memory is pageable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace ferro::sim {

class HostMemory {
 public:
  enum class Kind : std::uint8_t { kAllocated, kRegistered, kManaged };
  struct Range {
    std::uintptr_t base = 0;
    std::size_t bytes = 0;
    Kind kind = Kind::kAllocated;
    unsigned flags = 0;
    int device = 0;  // the current one at the allocation
  };

  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Zeroed memory; null when the host has none.
  void* allocate(std::size_t bytes, Kind kind, unsigned flags, int device);
  // False if no allocation of this kind begins there.
  bool free(const void* at, Kind kind);
  // False if a part of the range is known already.
  bool register_range(void* at, std::size_t bytes, unsigned flags, int device);
  bool unregister_range(const void* at);

  std::optional<Range> find(const void* at) const;
  std::size_t count() const { return ranges_.size(); }

 private:
  std::map<std::uintptr_t, Range> ranges_;
};

}  // namespace ferro::sim
