// One reserved range of addresses, with the handles that back it and a table of the blocks that
// start in it. The heap's lock guards it, except the constants `base`, `bytes` and `heap`.
//
// Invariant: base and bytes of an arena's spans are multiples of kSpanAlignment; page slot i backs
// [base + i * page_bytes, base + (i + 1) * page_bytes); the slots of one handle are contiguous;
// backed_pages() == number of filled slots, those of handles that are asleep included.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/base/host_chunks.h"
#include "ferro/base/lazy_array.h"
#include "ferro/core/types/block.h"
#include "ferro/driver/types.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ferro {

class Heap;

// Spans of arenas begin and end at multiples of it, so that AddressIndex finds them by the upper
// bits of an address. It is also the smallest size that an arena reserves.
inline constexpr std::size_t kSpanAlignment = 64 * kMiB;

class Span {
 public:
  Span(DevicePtr base, std::size_t bytes, std::size_t page_bytes, Heap* heap)
      : base_(base),
        bytes_(bytes),
        page_bytes_(page_bytes),
        heap_(heap),
        pages_(bytes / page_bytes),
        leaves_(ceil_div(bytes, kLeafBytes)) {}

  DevicePtr base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  Heap* heap() const { return heap_; }
  // Ascends in the order in which the process creates spans.
  std::uint64_t number() const { return number_; }

  // Pages.
  std::size_t page_slot(DevicePtr ptr) const { return distance(base_, ptr) / page_bytes_; }
  PageHandle page(std::size_t slot) const { return pages_[slot].handle; }
  std::size_t page_slots() const { return pages_.size(); }
  // Fills `pages` empty slots with a handle.
  void put_handle(std::size_t first, PageHandle handle, std::size_t pages, bool borrowed = false) {
    for (std::size_t slot = first; slot < first + pages; ++slot) {
      pages_[slot] = {handle, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(pages),
                      borrowed};
    }
    backed_pages_ += pages;
  }
  // Empties the slots of the handle that begins at `first`.
  void remove_handle(std::size_t first) {
    const std::size_t end = handle_end(first);
    backed_pages_ -= end - first;
    for (std::size_t slot = first; slot < end; ++slot) {
      pages_[slot] = {};
    }
  }
  // The first and one past the last slot of the handle in `slot`, a filled one.
  std::size_t handle_begin(std::size_t slot) const { return pages_[slot].first; }
  std::size_t handle_end(std::size_t slot) const { return pages_[slot].first + pages_[slot].pages; }
  // Whether the handle in a filled slot belongs to a scratch set.
  bool is_borrowed(std::size_t slot) const { return pages_[slot].borrowed; }
  // Makes the heap the owner of the handle that begins at `first`.
  void keep_handle(std::size_t first) {
    for (std::size_t slot = first; slot < handle_end(first); ++slot) {
      pages_[slot].borrowed = false;
    }
  }
  std::size_t backed_pages() const { return backed_pages_; }
  // Whether the slot has a handle, also one that is asleep. `page` of the latter is kNoPage.
  bool is_filled(std::size_t slot) const { return pages_[slot].pages != 0; }
  bool is_asleep(std::size_t slot) const {
    return pages_[slot].pages != 0 && pages_[slot].handle == kNoPage;
  }
  // Puts the handle that begins at `first` to sleep, and returns it. `remove_handle` undoes it.
  PageHandle put_to_sleep(std::size_t first) {
    const PageHandle handle = pages_[first].handle;
    for (std::size_t slot = first; slot < handle_end(first); ++slot) {
      pages_[slot].handle = kNoPage;
    }
    return handle;
  }

  // Blocks. `first` is the block at base, from which the tiling can be walked.
  Block* first = nullptr;

  // The block that starts exactly at `ptr`, or null. `ptr` lies in the span.
  Block* block_at(DevicePtr ptr) const {
    const std::size_t offset = distance(base_, ptr);
    const Leaf* leaf = leaves_[offset / kLeafBytes];
    return leaf != nullptr && is_aligned(offset, kBlockAlignment)
               ? (*leaf)[offset % kLeafBytes / kBlockAlignment]
               : nullptr;
  }
  // The block that contains `ptr`, an address of the span: the last that starts at or before it.
  // Visits one leaf for each 32 KiB of the block before `ptr`.
  Block* block_around(DevicePtr ptr) const {
    const std::size_t offset = distance(base_, ptr);
    std::size_t leaf = offset / kLeafBytes;
    std::size_t entry = offset % kLeafBytes / kBlockAlignment + 1;
    for (;; --leaf, entry = kLeafEntries) {
      if (const Leaf* starts = leaves_[leaf]) {
        while (entry > 0) {
          if (Block* block = (*starts)[--entry]) {
            return block;
          }
        }
      }
    }
  }
  void set_block(DevicePtr ptr, Block* block) {
    const std::size_t offset = distance(base_, ptr);
    Leaf*& leaf = leaves_[offset / kLeafBytes];
    if (leaf == nullptr) {
      leaf = leaf_chunks_.make<Leaf>();
    }
    (*leaf)[offset % kLeafBytes / kBlockAlignment] = block;
  }

 private:
  struct PageSlot {
    PageHandle handle = kNoPage;
    std::uint32_t first = 0;  // first slot of the handle
    std::uint32_t pages = 0;  // size of the handle
    bool borrowed = false;
  };

  // 64 block starts, 512 bytes of host memory, created when the first block starts there. A flat
  // table would cost eight bytes for every 512 of the device in each host page that is touched.
  static constexpr std::size_t kLeafEntries = 64;
  using Leaf = std::array<Block*, kLeafEntries>;
  static constexpr std::size_t kLeafBytes = kLeafEntries * kBlockAlignment;

  static inline std::atomic<std::uint64_t> next_number_{0};

  const std::uint64_t number_ = next_number_.fetch_add(1, std::memory_order_relaxed);
  const DevicePtr base_;
  const std::size_t bytes_;
  const std::size_t page_bytes_;
  Heap* const heap_;
  LazyArray<PageSlot> pages_;
  LazyArray<Leaf*> leaves_;
  HostChunks leaf_chunks_;
  std::size_t backed_pages_ = 0;
};

}  // namespace ferro
