// The blocks of one heap: tiles the heap's spans with them; finds, splits, merges and cuts them.
// Makes no driver call and knows no streams. The heap's lock guards it.
//
// Invariants (check_invariants recounts them):
//  * the blocks of a span tile it; prev/next mirror the addresses; the span's index holds exactly
//    the starts of all blocks;
//  * no two neighbours are both free, both gaps or both retired;
//  * the free index has exactly the free blocks, the gap index the gaps;
//  * a free block's stamp is the latest of the blocks merged into it;
//  * backed_pages() == filled slots of all spans, scratch().borrowed_pages == those of borrowed
//    handles, scratch().retired_bytes == bytes of retired blocks; sleep().pages == those of handles
//    that are asleep, sleep().free_bytes == bytes of blocks that are;
//  * a block is asleep only on handles that are, and a free or retired one only on others.
#pragma once

#include "ferro/core/blocks/block_slab.h"
#include "ferro/core/blocks/free_index.h"
#include "ferro/core/blocks/gap_index.h"
#include "ferro/core/blocks/span.h"
#include "ferro/core/policy/growth.h"
#include "ferro/core/policy/whole_pages.h"
#include "ferro/core/types/handle_range.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ferro {

// Whole free handles inside a free block.
struct Hole {
  Block* block = nullptr;
  PageRun run;
};

// The policy's view of a gap, with the free blocks that touch it.
GapView view_of_gap(const Block& gap);

class BlockTiling {
 public:
  using Spans = std::map<DevicePtr, std::unique_ptr<Span>>;  // by their first address

  explicit BlockTiling(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  // Spans. Adds a span as one block in state kGap, in no index.
  Block* add_span(std::unique_ptr<Span> span);
  // The span must be a single block, in no index.
  std::unique_ptr<Span> remove_span(Span& span);
  const Spans& spans() const { return spans_; }
  // The span that contains an address, if any. O(log spans).
  Span* span_around(DevicePtr ptr) const;
  std::size_t reserved_bytes() const { return reserved_bytes_; }

  // Free memory.
  const FreeIndex& free_blocks() const { return free_; }
  // Frees a block that is in no index, and merges it with its free neighbours.
  void insert(Block* block);
  // Removes a free block from the index. The caller sets its state.
  void take(Block* block) { free_.remove(block); }
  // Whether a free block of at least a page has appeared since the last call.
  bool was_page_freed() { return std::exchange(page_was_freed_, false); }
  // Puts a block whose neighbours are not free back into the index.
  void put_unchanged(Block* block);

  // Cuts `block` down to `size`; the rest becomes its next neighbour, in `tail_state` and no index.
  void split_tail(Block* block, std::size_t size, BlockState tail_state);
  // Cuts a range out of the free block `block`, or out of a block that was cut off it since. The
  // rest on both sides stays free. The range's block is in no index; the caller sets its state.
  Block* cut(Block* block, DevicePtr begin, std::size_t bytes);

  // Gaps.
  void make_gap(Block* block);
  void take_gap(Block* gap) { gaps_.remove(gap); }
  // The gaps from which a policy may choose, in order of address: all of them while they are few,
  // else those beside the largest free blocks and the first one with room for the request and
  // `spare` pages more. O(log blocks).
  std::vector<Block*> growth_candidates(std::size_t request, std::size_t spare) const;

  // Handles. Calls `visit(const Hole&)` for the whole free handles of each free block, large blocks
  // first, until it returns false.
  template <typename Visit>
  void for_each_hole(Visit visit) const {
    free_.descend([&](Block* block) {
      if (block->size < page_bytes_) {
        return false;
      }
      const auto run = whole_pages_inside(block->ptr, block->size, page_bytes_);
      const PageRun handles = run ? whole_handles_inside(*block->span, *run) : PageRun{};
      return handles.bytes == 0 || visit(Hole{block, handles});
    });
  }
  // Calls `visit(pages, bytes)` for the bytes of each free block on a handle that it covers only in
  // part; `pages` are the handle's. O(free blocks).
  template <typename Visit>
  void for_each_stranded(Visit visit) const {
    free_.descend([&](const Block* block) {
      const Span& span = *block->span;
      const std::size_t first = span.page_slot(block->ptr);
      const std::size_t last = span.page_slot(block->ptr + (block->size - 1));
      const auto visit_handle = [&](std::size_t slot) {
        const std::size_t pages = span.handle_end(slot) - span.handle_begin(slot);
        const DevicePtr handle = span.base() + span.handle_begin(slot) * page_bytes_;
        const std::size_t bytes = distance(std::max(block->ptr, handle),
                                           std::min(block->end(), handle + pages * page_bytes_));
        if (bytes != pages * page_bytes_) {
          visit(pages, bytes);
        }
      };
      visit_handle(first);
      if (last >= span.handle_end(first)) {
        visit_handle(last);
      }
      return true;
    });
  }
  // The end of the handle at an address.
  DevicePtr handle_end(const Span& span, DevicePtr ptr) const {
    return span.base() + span.handle_end(span.page_slot(ptr)) * page_bytes_;
  }
  // The handles behind a range of whole handles, in order of address.
  std::vector<HandleRange> handles_behind(const Span& span, const PageRun& run) const;
  // Records the handles that back the addresses from `begin` on, which were unbacked.
  enum class Owner { kHeap, kScratchSet };
  void back(Span& span, DevicePtr begin, std::span<const HandleRange> handles,
            Owner owner = Owner::kHeap);
  // Removes the handles that back a range of whole handles.
  void unback(Span& span, const PageRun& run);
  std::size_t backed_pages() const { return backed_pages_; }
  // Scratch of graphs.
  struct Scratch {
    std::size_t borrowed_pages = 0;
    std::size_t retired_bytes = 0;
  };
  const Scratch& scratch() const { return scratch_; }
  // Retired memory. Retires a block that is in no index, and merges it with retired neighbours.
  Block* retire(Block* block);
  // Cuts whole pages out of a retired block; the caller sets their state.
  Block* cut_retired(Block* block, DevicePtr begin, std::size_t bytes);
  // Frees all retired memory. O(blocks).
  void unretire_all();

  // Sleep. Puts the handle that begins at `begin` to sleep, and its free and retired blocks with
  // it. Returns the handle and appends the retired parts to `retired`.
  PageHandle put_to_sleep(Span& span, DevicePtr begin, std::vector<PageRun>* retired);
  // Backs the handle's addresses with these handles, of as many pages, and makes its blocks that
  // are asleep free again, or retired where they were.
  void wake(Span& span, DevicePtr begin, std::span<const HandleRange> handles,
            std::span<const PageRun> retired);
  // Frees a block, in no index, that lies on some handle that is asleep.
  void free_asleep(Block* block);
  // Removes a handle that is asleep and has only blocks that are. Returns its addresses as a block
  // in no index, for `make_gap`.
  Block* forget_asleep(Span& span, DevicePtr begin);
  bool is_asleep(const Block& block) const;
  struct Sleep {
    std::size_t pages = 0;
    std::size_t free_bytes = 0;  // of these pages: free or retired
  };
  const Sleep& sleep() const { return sleep_; }

  // Merges the next block, of the same state and in no index, into this one.
  void absorb_next(Block* block);
  // Makes the heap the owner of a borrowed handle.
  void keep(Span& span, DevicePtr begin);

  // `function(Block&)` in order of address; it must not change the tiling. O(blocks).
  template <typename Function>
  void for_each_block(Function function) const {
    for (const auto& [base, span] : spans_) {
      for (Block* block = span->first; block != nullptr; block = block->next) {
        function(*block);
      }
    }
  }
  // Recounts and throws InternalError on a mismatch. O(blocks).
  void check_invariants() const;

 private:
  // The most free blocks whose gaps are considered for one request.
  static constexpr std::size_t kMaxCandidates = 64;

  template <typename LeaveIndex>
  Block* merge_neighbours(Block* block, LeaveIndex leave_index);
  void mark_asleep(Block* block);
  Block* cut_unindexed(Block* block, DevicePtr begin, DevicePtr end);
  void check_sleep(const Block& block) const;
  PageRun whole_handles_inside(const Span& span, PageRun run) const;

  const std::size_t page_bytes_;
  Spans spans_;
  std::size_t reserved_bytes_ = 0;
  std::size_t backed_pages_ = 0;
  Sleep sleep_;
  Scratch scratch_;
  bool page_was_freed_ = false;
  FreeIndex free_;
  GapIndex gaps_;
  BlockSlab blocks_;
};

}  // namespace ferro
