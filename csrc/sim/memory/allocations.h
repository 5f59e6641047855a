// The memory of cuMemAlloc on one device.
//
// Sizes up to 1 MiB are cut at 512 bytes from chunks of 2 MiB, larger ones are rounded up to 2 MiB,
// as the driver does. Not thread-safe; the machine's lock guards it. Invariant: a chunk is released
// when no allocation in it is live, so the device memory taken = 2 MiB x chunks + sum of large
// sizes.
#pragma once

#include "sim/memory/address_space.h"

#include <map>
#include <optional>

namespace ferro::sim {

class Allocations {
 public:
  Allocations(AddressSpace& space, PhysicalMemory& memory, int device);
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;

  // None when the device is full.
  std::optional<CUdeviceptr> allocate(std::size_t bytes);
  // False if no allocation begins there.
  bool free(CUdeviceptr at);

  struct Range {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
  };
  // The allocation that contains an address.
  std::optional<Range> find(CUdeviceptr at) const;
  std::size_t count() const { return live_.size(); }
  // The sum of the requested sizes of live allocations, and its highest value.
  std::size_t bytes() const { return bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }

  // Peers may access all present and future allocations.
  void set_peer_access(int peer, bool allowed);

 private:
  struct Block {
    std::size_t bytes = 0;    // requested
    std::size_t rounded = 0;  // taken
    CUdeviceptr chunk = 0;    // 0 for a large allocation
  };
  void add_live(CUdeviceptr at, const Block& block);
  std::optional<CUdeviceptr> take_pages(std::size_t bytes);
  void release_pages(CUdeviceptr base, std::size_t bytes);

  AddressSpace& space_;
  PhysicalMemory& memory_;
  const int device_;
  std::array<Access, kMaxDevices> access_{};
  std::map<CUdeviceptr, Block> live_;
  std::size_t bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::map<CUdeviceptr, std::size_t> free_;          // free ranges of chunks; neighbours merged
  std::map<CUdeviceptr, std::size_t> chunk_blocks_;  // live blocks of each chunk
};

}  // namespace ferro::sim
