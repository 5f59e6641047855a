#include "sim/memory/address_space.h"

#include "sim/memory/find_range.h"

#include <algorithm>
#include <sys/mman.h>

namespace ferro::sim {
namespace {

// TSan ends a program that maps memory anywhere but in a few ranges.
#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
constexpr CUdeviceptr kFirstAddress = 0x0040'0000'0000;
constexpr CUdeviceptr kEndAddress = 0x0080'0000'0000;
#else
// Free of the program, its libraries and heaps, and of ASan's shadow.
constexpr CUdeviceptr kFirstAddress = 0x2000'0000'0000;
constexpr CUdeviceptr kEndAddress = 0x4000'0000'0000;
#endif
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* host_address(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

bool take(CUdeviceptr at, std::size_t bytes) {
  void* const wanted = host_address(at);
  void* const memory = mmap(wanted, bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  // Kernels before 4.17 treat the address as a hint.
  if (memory != wanted && memory != MAP_FAILED) {
    munmap(memory, bytes);
  }
  return memory == wanted;
}

bool unmap_host(CUdeviceptr at, std::size_t bytes) { return munmap(host_address(at), bytes) == 0; }

// The kernel chooses the address, directly below its previous choice. So neighbours share one entry
// of the process's map, and ranges whose sizes are multiples of an alignment stay aligned without
// gaps.
std::optional<CUdeviceptr> take_anywhere(std::size_t bytes, std::size_t alignment) {
  for (const std::size_t slack : {std::size_t{0}, alignment}) {
    if (bytes + slack < bytes) {
      return std::nullopt;
    }
    void* const memory = mmap(nullptr, bytes + slack, PROT_NONE, kFlags, -1, 0);
    if (memory == MAP_FAILED) {
      return std::nullopt;
    }
    const auto begin = reinterpret_cast<CUdeviceptr>(memory);
    const CUdeviceptr base = align_up(begin, alignment);
    if (base - begin > slack) {
      unmap_host(begin, bytes);
      continue;
    }
    if (base > begin) {
      unmap_host(begin, base - begin);
    }
    if (const std::size_t tail = begin + slack - base; tail > 0) {
      unmap_host(base + bytes, tail);
    }
    return base;
  }
  return std::nullopt;
}

// The part of a range that lies in the fixed range.
std::pair<CUdeviceptr, std::size_t> fixed_part(CUdeviceptr base, std::size_t bytes) {
  const CUdeviceptr begin = std::clamp(base, kFirstAddress, kEndAddress);
  const CUdeviceptr end = std::clamp<CUdeviceptr>(base + bytes, kFirstAddress, kEndAddress);
  return {begin, end - begin};
}

}  // namespace

const SharedFile* Pages::share(int card, bool backed) {
  if (!file_) {
    std::optional<SharedFile> file = SharedFile::create(bytes_, card);
    if (!file) {
      return nullptr;
    }
    file_.emplace(std::move(*file));
    auto shared = PhysicalMemory::shared(file_->descriptor(), bytes_, backed);
    shared->copy_onto_zeros(0, *own_memory_, own_offset_, bytes_);
    own_memory_->discard(own_offset_, bytes_);
    shared_ = std::move(shared);
  }
  return &*file_;
}

AddressSpace::AddressSpace(std::size_t limit) : limit_(limit) {
  gaps_.add(kFirstAddress, kEndAddress - kFirstAddress);
}

AddressSpace::~AddressSpace() {
  for (const auto& [base, bytes] : reservations_) {
    unmap_host(base, bytes);
  }
}

void AddressSpace::clear() {
  mappings_.clear();
  found_ = {};
  pages_.clear();
}

std::optional<CUdeviceptr> AddressSpace::take_gap(std::size_t bytes, std::size_t alignment) {
  const auto gap = gaps_.take(bytes, alignment);
  if (!gap || take(*gap, bytes)) {
    return gap;
  }
  // The host has mapped something there.
  gaps_.add(*gap, bytes);
  return std::nullopt;
}

std::optional<CUdeviceptr> AddressSpace::reserve(std::size_t bytes, std::size_t alignment,
                                                 CUdeviceptr hint) {
  if (bytes > limit_ - reserved_bytes_) {
    return std::nullopt;
  }
  alignment = std::max(alignment, kGranularity);
  std::optional<CUdeviceptr> base;
  if (hint != 0 && is_aligned(hint, alignment) && take(hint, bytes)) {
    base = hint;
  } else {
    base = take_gap(bytes, alignment);
  }
  if (!base) {
    base = take_anywhere(bytes, alignment);
  }
  if (!base) {
    return std::nullopt;
  }
  const auto [begin, part] = fixed_part(*base, bytes);
  gaps_.remove(begin, part);
  add_reservation(*base, bytes);
  return base;
}

void AddressSpace::add_reservation(CUdeviceptr base, std::size_t bytes) {
  reservations_.emplace(base, bytes);
  reserved_bytes_ += bytes;
}

std::optional<CUdeviceptr> AddressSpace::take_plain(std::size_t bytes, int device) {
  const auto at = plain_.take(device, bytes);
  if (!at || take(*at, bytes)) {
    return at;
  }
  // The host has mapped something there.
  plain_.put(*at, bytes);
  return std::nullopt;
}

std::optional<CUdeviceptr> AddressSpace::reserve_plain(std::size_t bytes, int device) {
  if (bytes > limit_ - reserved_bytes_) {
    return std::nullopt;
  }
  const auto base = take_plain(bytes, device);
  if (!base) {
    return reserve(bytes, kGranularity);
  }
  add_reservation(*base, bytes);
  return base;
}

CUresult AddressSpace::unreserve(CUdeviceptr base, std::size_t bytes) {
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto first = mappings_.lower_bound(base);
  if (find_mapping(base) != nullptr || (first != mappings_.end() && first->first < base + bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!unmap_host(base, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!plain_.put(base, bytes)) {
    const auto [begin, part] = fixed_part(base, bytes);
    gaps_.add(begin, part);
  }
  reservations_.erase(found);
  reserved_bytes_ -= bytes;
  return CUDA_SUCCESS;
}

std::shared_ptr<Pages> AddressSpace::create(PhysicalMemory& memory, int device, std::size_t bytes) {
  const auto offset = memory.allocate(bytes);
  if (!offset) {
    return nullptr;
  }
  auto pages = std::make_shared<Pages>(memory, device, *offset, bytes);
  adopt(pages);
  return pages;
}

void AddressSpace::adopt(const std::shared_ptr<Pages>& pages) {
  pages->id = next_id_++;
  pages->references = 1;
  pages_.emplace(pages->id, pages);
}

std::shared_ptr<Pages> AddressSpace::find_pages(CUmemGenericAllocationHandle id) const {
  const auto found = pages_.find(id);
  return found == pages_.end() ? nullptr : found->second;
}

CUresult AddressSpace::release(CUmemGenericAllocationHandle id) {
  const auto found = pages_.find(id);
  if (found == pages_.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second->references == 0) {
    pages_.erase(found);
  }
  return CUDA_SUCCESS;
}

std::shared_ptr<Pages> AddressSpace::retain(CUdeviceptr at) {
  const Mapping* mapping = find_mapping(at);
  if (mapping == nullptr || mapping->plain) {
    return nullptr;
  }
  ++mapping->pages->references;
  pages_.emplace(mapping->pages->id, mapping->pages);
  return mapping->pages;
}

CUresult AddressSpace::map(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                           CUmemGenericAllocationHandle id) {
  const auto pages = find_pages(id);
  if (pages == nullptr || bytes == 0 || !is_aligned(at, kGranularity)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != 0 || bytes != pages->bytes()) {
    return offset + bytes <= pages->bytes() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_reserved_range(at, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = mappings_.lower_bound(at);
  if (next != mappings_.end() && next->first < at + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (find_mapping(at) != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  mappings_.emplace_hint(next, at, Mapping{pages, {}, false});
  return CUDA_SUCCESS;
}

void AddressSpace::map_plain(CUdeviceptr at, std::shared_ptr<Pages> pages,
                             const std::array<Access, kMaxDevices>& access) {
  mappings_.emplace(at, Mapping{std::move(pages), access, true});
}

std::optional<AddressSpace::MappingRange> AddressSpace::whole_mappings(CUdeviceptr at,
                                                                       std::size_t bytes) {
  if (bytes == 0 || !is_reserved_range(at, bytes)) {
    return std::nullopt;
  }
  CUdeviceptr base = at;
  if (find_mapping(at, &base) != nullptr && base != at) {
    return std::nullopt;
  }
  MappingRange range{mappings_.lower_bound(at), {}, 0};
  for (range.last = range.first; range.last != mappings_.end() && range.last->first < at + bytes;
       ++range.last) {
    const Mapping& mapping = range.last->second;
    if (mapping.plain || range.last->first + mapping.bytes() > at + bytes) {
      return std::nullopt;
    }
    ++range.count;
  }
  return range;
}

CUresult AddressSpace::unmap(CUdeviceptr at, std::size_t bytes, std::size_t* handles) {
  const auto range = whole_mappings(at, bytes);
  if (!range) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handles = range->count;
  mappings_.erase(range->first, range->last);
  found_ = {};
  return CUDA_SUCCESS;
}

void AddressSpace::unmap_plain(CUdeviceptr at) {
  mappings_.erase(at);
  found_ = {};
}

CUresult AddressSpace::set_access(CUdeviceptr at, std::size_t bytes, int device, Access access,
                                  std::size_t* handles) {
  const auto range = whole_mappings(at, bytes);
  if (!range || find_mapping(at) == nullptr || find_mapping(at + bytes - 1) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handles = range->count;
  for (auto mapping = range->first; mapping != range->last; ++mapping) {
    mapping->second.access[static_cast<std::size_t>(device)] = access;
  }
  return CUDA_SUCCESS;
}

void AddressSpace::set_plain_access(int owner, int peer, Access access) {
  for (auto& [base, mapping] : mappings_) {
    if (mapping.plain && mapping.pages->device() == owner) {
      mapping.access[static_cast<std::size_t>(peer)] = access;
    }
  }
}

const Mapping* AddressSpace::find_mapping(CUdeviceptr at, CUdeviceptr* base) const {
  Found& last = found_[at / kGranularity % found_.size()];
  if (last.mapping == nullptr || at - last.base >= last.bytes) {
    const auto found = find_range(mappings_, at, [](const Mapping& m) { return m.bytes(); });
    if (found == mappings_.end()) {
      return nullptr;
    }
    last = {found->first, found->second.bytes(), &found->second};
  }
  if (base != nullptr) {
    *base = last.base;
  }
  return last.mapping;
}

AddressSpace::Reservations::const_iterator AddressSpace::find_reservation(CUdeviceptr at) const {
  return find_range(reservations_, at, [](std::size_t bytes) { return bytes; });
}

bool AddressSpace::is_reserved_range(CUdeviceptr at, std::size_t bytes) const {
  const CUdeviceptr end = at + bytes;
  while (at < end) {
    const auto reservation = find_reservation(at);
    if (reservation == reservations_.end()) {
      return false;
    }
    at = reservation->first + reservation->second;
  }
  return true;
}

bool AddressSpace::resolve(CUdeviceptr at, std::size_t bytes, Accessor by, bool write,
                           std::vector<Segment>& segments) const {
  const auto allows = [write](Access access) {
    return write ? access == Access::kReadWrite : access != Access::kNone;
  };
  while (bytes > 0) {
    CUdeviceptr base = 0;
    const Mapping* mapping = find_mapping(at, &base);
    if (mapping == nullptr) {
      return false;
    }
    const Pages& pages = *mapping->pages;
    const bool through_owner = by.through_owner || mapping->plain;
    if (!allows(mapping->access[static_cast<std::size_t>(by.device)]) &&
        !(through_owner && allows(mapping->access[static_cast<std::size_t>(pages.device())]))) {
      return false;
    }
    const std::size_t skipped = at - base;
    const std::size_t piece = std::min(bytes, pages.bytes() - skipped);
    segments.push_back({&pages.memory(), pages.device(), pages.offset() + skipped, piece});
    at += piece;
    bytes -= piece;
  }
  return true;
}

}  // namespace ferro::sim
