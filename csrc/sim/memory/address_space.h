// The page table: reserved addresses, physical pages (one handle each) and mappings.
//
// Device addresses are inaccessible reservations of the process. So no device address equals a host
// address, a host program that dereferences one faults as on a GPU, and host and devices share the
// address space of the process. A reservation needs no page table; adjacent ones share an entry of
// the process's map, which the kernel limits to 65,530 entries. Accesses are translated to physical
// memory; two addresses of one handle are true aliases. Not thread-safe; the machine's lock guards
// it. A function that fails changes nothing. Reserving, freeing, mapping and finding are O(log n).
// Invariants: mappings do not overlap and lie in reserved addresses; reserved_bytes() = sum of the
// reservations <= limit; the physical memory of a handle is free exactly when the handle has
// neither an owner nor a mapping.
#pragma once

#include "ferro/base/bytes.h"
#include "sim/memory/free_ranges.h"
#include "sim/memory/physical_memory.h"
#include "sim/memory/plain_addresses.h"
#include "sim/memory/shared_file.h"
#include "sim/settings/config.h"

#include <cuda.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

inline constexpr std::size_t kGranularity = 2 * kMiB;
inline constexpr int kMaxDevices = 16;

// The pages behind one handle. `references` counts the owners of the handle; mappings share it.
class Pages {
 public:
  Pages(PhysicalMemory& memory, int device, std::size_t offset, std::size_t bytes)
      : own_memory_(&memory), device_(device), own_offset_(offset), bytes_(bytes) {}
  // Pages of another process, which count there and not on a device of this machine.
  Pages(SharedFile file, int device, bool backed)
      : device_(device), bytes_(file.bytes()), file_(std::move(file)) {
    shared_ = PhysicalMemory::shared(file_->descriptor(), bytes_, backed);
  }
  ~Pages() {
    if (own_memory_ != nullptr) {
      own_memory_->free(own_offset_, bytes_);
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  PhysicalMemory& memory() const { return shared_ != nullptr ? *shared_ : *own_memory_; }
  std::size_t offset() const { return shared_ != nullptr ? 0 : own_offset_; }
  int device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  bool imported() const { return own_memory_ == nullptr; }

  // The first call moves the bytes into a separate file. Null, with nothing changed, when the
  // process is out of file descriptors.
  const SharedFile* share(int card, bool backed);

  CUmemGenericAllocationHandle id = 0;
  unsigned references = 0;
  CUmemAllocationProp properties{};

 private:
  PhysicalMemory* const own_memory_ = nullptr;
  const int device_;
  const std::size_t own_offset_ = 0;
  const std::size_t bytes_;
  std::optional<SharedFile> file_;
  std::unique_ptr<PhysicalMemory> shared_;
};

enum class Access : std::uint8_t { kNone = 0, kRead = 1, kReadWrite = 3 };

struct Mapping {
  std::shared_ptr<Pages> pages;
  std::array<Access, kMaxDevices> access{};
  // Memory of cuMemAlloc or of cuIpcOpenMemHandle, which the virtual-memory calls must not touch.
  bool plain = false;

  std::size_t bytes() const { return pages->bytes(); }
};

// A contiguous piece of physical memory.
struct Segment {
  PhysicalMemory* memory = nullptr;
  int device = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// The device that accesses memory. A copy between devices reaches memory that its device may not
// access through the owner of the memory. Other work reaches only cuMemAlloc's memory that way.
struct Accessor {
  int device = 0;
  bool through_owner = false;
};

class AddressSpace {
 public:
  // `limit`: the most bytes that may be reserved. The kernel refuses earlier if the host has mapped
  // the remaining addresses.
  explicit AddressSpace(std::size_t limit = kProcessAddressBytes);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Removes all mappings and handles, before the physical memory behind them is destroyed.
  void clear();

  // Addresses. `bytes` is a positive multiple of the granularity, `alignment` 0 or a power of two.
  // Uses `hint` if it is free, else the best fit in a fixed range, so that the same calls return
  // the same addresses in every run; else any free address. None when no addresses are left.
  std::optional<CUdeviceptr> reserve(std::size_t bytes, std::size_t alignment,
                                     CUdeviceptr hint = 0);
  // For cuMemAlloc's memory on a device.
  std::optional<CUdeviceptr> reserve_plain(std::size_t bytes, int device);
  // INVALID_VALUE unless exactly this range was reserved and nothing is mapped in it; OUT_OF_MEMORY
  // when the process's map has no entry left for the new hole.
  CUresult unreserve(CUdeviceptr base, std::size_t bytes);
  std::size_t reserved_bytes() const { return reserved_bytes_; }

  // Pages. Null when the memory is full.
  std::shared_ptr<Pages> create(PhysicalMemory& memory, int device, std::size_t bytes);
  // Gives pages of another process a handle.
  void adopt(const std::shared_ptr<Pages>& pages);
  std::shared_ptr<Pages> find_pages(CUmemGenericAllocationHandle id) const;
  // Removes one owner.
  CUresult release(CUmemGenericAllocationHandle id);
  // Adds an owner to the pages mapped at an address; null when there are none.
  std::shared_ptr<Pages> retain(CUdeviceptr at);

  // Mappings.
  CUresult map(CUdeviceptr at, std::size_t bytes, std::size_t offset,
               CUmemGenericAllocationHandle id);
  // Maps pages without a handle, with these access rights for each device.
  void map_plain(CUdeviceptr at, std::shared_ptr<Pages> pages,
                 const std::array<Access, kMaxDevices>& access);
  // Both take whole mappings; gaps between them are ignored, and unmapping may find nothing.
  // `handles` counts the mappings. Setting access needs the first and the last byte mapped.
  CUresult unmap(CUdeviceptr at, std::size_t bytes, std::size_t* handles);
  void unmap_plain(CUdeviceptr at);
  CUresult set_access(CUdeviceptr at, std::size_t bytes, int device, Access access,
                      std::size_t* handles);
  void set_plain_access(int owner, int peer, Access access);

  // Null where nothing is mapped. `base` receives the start of the mapping.
  const Mapping* find_mapping(CUdeviceptr at, CUdeviceptr* base = nullptr) const;
  bool is_reserved(CUdeviceptr at) const { return find_reservation(at) != reservations_.end(); }
  // Appends the pieces behind a range; false when any byte of it may not be accessed by `by`.
  bool resolve(CUdeviceptr at, std::size_t bytes, Accessor by, bool write,
               std::vector<Segment>& segments) const;

  // Bytes by address.
  using Reservations = std::map<CUdeviceptr, std::size_t>;
  const Reservations& reservations() const { return reservations_; }
  const std::map<CUdeviceptr, Mapping>& mappings() const { return mappings_; }
  // Handles that have an owner.
  std::size_t handle_count() const { return pages_.size(); }

 private:
  std::optional<CUdeviceptr> take_gap(std::size_t bytes, std::size_t alignment);
  std::optional<CUdeviceptr> take_plain(std::size_t bytes, int device);
  void add_reservation(CUdeviceptr base, std::size_t bytes);
  using Mappings = std::map<CUdeviceptr, Mapping>;
  Reservations::const_iterator find_reservation(CUdeviceptr at) const;
  struct MappingRange {
    Mappings::iterator first;
    Mappings::iterator last;
    std::size_t count = 0;
  };
  bool is_reserved_range(CUdeviceptr at, std::size_t bytes) const;
  // The mappings in a reserved range; none when it cuts a mapping or is not reserved.
  std::optional<MappingRange> whole_mappings(CUdeviceptr at, std::size_t bytes);

  const std::size_t limit_;
  std::size_t reserved_bytes_ = 0;
  // The unreserved parts of the fixed range. The host may have mapped some of them.
  FreeRanges gaps_;
  PlainAddresses plain_{gaps_};
  Reservations reservations_;
  Mappings mappings_;
  // Mappings that were found last, by address.
  struct Found {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    const Mapping* mapping = nullptr;
  };
  mutable std::array<Found, 64> found_;
  std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Pages>> pages_;
  CUmemGenericAllocationHandle next_id_ = 0x1000;
};

}  // namespace ferro::sim
