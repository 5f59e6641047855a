// The blocks of one heap: how they tile its spans, and how they are found, split, merged and cut.
// Knows neither driver nor streams nor locks. Belongs to its heap's lock.
//
// Invariants (check_invariants recounts them):
//  * the blocks of a span tile it; prev/next mirror the addresses; the span's index holds exactly
//    the starts of all blocks;
//  * no two neighbours are both free, both gaps or both retired;
//  * a free block is in the free index, an unmerged one in a bin, a gap in the gap index, and no
//    other block in any;
//  * a free block's stamp is the latest of what was merged into it;
//  * backed_pages() == filled slots of all spans, scratch().borrowed_pages == those of borrowed
//    handles, scratch().retired_bytes == bytes of retired blocks.
#pragma once

#include "ferro/core/blocks/block_slab.h"
#include "ferro/core/blocks/free_index.h"
#include "ferro/core/blocks/gap_index.h"
#include "ferro/core/blocks/span.h"
#include "ferro/core/blocks/unmerged_bins.h"
#include "ferro/core/policy/growth.h"
#include "ferro/core/policy/whole_pages.h"
#include "ferro/core/types/handle_range.h"

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

// A gap as the policy sees it, with the free blocks that touch it.
GapView view_of_gap(const Block& gap);

class ArenaScratch;

class BlockTiling {
 public:
  using Spans = std::map<DevicePtr, std::unique_ptr<Span>>;  // by their first address

  explicit BlockTiling(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  // Spans. A new one is one block in state kGap, in no index.
  Block* add_span(std::unique_ptr<Span> span);
  // One that is one block, in no index.
  std::unique_ptr<Span> remove_span(Span& span);
  const Spans& spans() const { return spans_; }
  // The span that contains an address, if any. O(log spans).
  Span* span_around(DevicePtr ptr) const;
  std::size_t reserved_bytes() const { return reserved_bytes_; }

  // Free memory. O(1) for unmerged blocks, O(log blocks) else.
  Block* pop_unmerged(std::size_t size) { return unmerged_.pop(size); }
  const FreeIndex& free_blocks() const { return free_; }
  // A block that is in no index becomes free: kept unmerged for the next request of its size, or
  // merged with its free neighbours.
  void give(Block* block) {
    if (unmerged_.accepts(block->size)) [[likely]] {
      unmerged_.push(block);
    } else {
      give_beyond_bins(block);
    }
  }
  // The same, always merged.
  Block* insert_merged(Block* block);
  // Merges what is unmerged: at most UnmergedBins::kMaxBlocks of them.
  void merge_all();
  // A free block leaves the index. Its state is the caller's to set.
  void take(Block* block) { free_.remove(block); }
  // Did a free block of at least a page come to be since this was last asked?
  bool was_page_freed() { return std::exchange(page_was_freed_, false); }
  // Back into the index, for blocks whose neighbours are not free.
  void put_unchanged(Block* block);
  std::size_t unmerged_bytes() const { return unmerged_.bytes(); }

  // Cuts `block` down to `size`; what is left over becomes its next neighbour in `tail_state`, in no
  // index.
  void split_tail(Block* block, std::size_t size, BlockState tail_state);
  // The range lies in the free block `block`, or in what was a part of it when the caller looked.
  // What is left on both sides stays free; the block of the range is in no index and its state is
  // the caller's to set.
  Block* cut(Block* block, DevicePtr begin, std::size_t bytes);

  // Gaps.
  void make_gap(Block* block);
  void take_gap(Block* gap) { gaps_.remove(gap); }
  // The gaps that a policy may choose from, in order of address, with the free memory beside them:
  // all of them while they are few, else those beside the largest free blocks and the first that
  // has room for the request and `spare` pages more. O(log blocks).
  std::vector<Block*> growth_candidates(std::size_t request, std::size_t spare) const;

  // Calls `visit(Block*, const PageRun&)` for the whole free pages of each free block, large blocks
  // first, until it returns false.
  template <typename Visit>
  void for_each_free_run(Visit visit) const {
    free_.descend([&](Block* block) {
      if (block->size < page_bytes_) {
        return false;
      }
      const auto run = whole_pages_inside(block->ptr, block->size, page_bytes_);
      return !run || visit(block, *run);
    });
  }
  // Handles. The same with `visit(const Hole&)` for the whole free handles.
  template <typename Visit>
  void for_each_hole(Visit visit) const {
    for_each_free_run([&](Block* block, const PageRun& run) {
      const PageRun handles = whole_handles_inside(*block->span, run);
      return handles.bytes == 0 || visit(Hole{block, handles});
    });
  }
  // The handles behind a range of whole handles, in order of address.
  std::vector<HandleRange> handles_behind(const Span& span, const PageRun& run) const;
  // Puts handles behind addresses that have none.
  enum class Owner { kHeap, kScratchSet };
  void back(Span& span, DevicePtr begin, std::span<const HandleRange> handles,
            Owner owner = Owner::kHeap);
  // Takes away the handles behind a range of whole ones.
  void unback(Span& span, const PageRun& run);
  std::size_t backed_pages() const { return backed_pages_; }
  // Of graphs.
  struct Scratch {
    std::size_t borrowed_pages = 0;
    std::size_t retired_bytes = 0;
  };
  const Scratch& scratch() const { return scratch_; }

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
  friend class ArenaScratch;

  // Retired memory. A block that is in no index becomes retired, with its retired neighbours.
  Block* retire(Block* block);
  // Cuts whole pages out of a retired block; their state is the caller's to set.
  Block* cut_retired(Block* block, DevicePtr begin, std::size_t bytes);
  // All that is retired is free again. O(blocks).
  void unretire_all();

  // The next block becomes a part of this one, of the same state and in no index.
  void join_next(Block* block) { absorb_next(block); }
  // A borrowed handle is the heap's own from now on.
  void keep(Span& span, DevicePtr begin);

  // More gaps than this are not looked at for one request.
  static constexpr std::size_t kMaxCandidates = 64;
  static constexpr std::size_t kMergedTogether = 8;

  void give_beyond_bins(Block* block);
  void merge_some();
  Block* merge_neighbours(Block* block);
  void absorb_next(Block* block);
  PageRun whole_handles_inside(const Span& span, PageRun run) const;

  const std::size_t page_bytes_;
  Spans spans_;
  std::size_t reserved_bytes_ = 0;
  std::size_t backed_pages_ = 0;
  Scratch scratch_;
  bool page_was_freed_ = false;
  FreeIndex free_;
  UnmergedBins unmerged_;
  GapIndex gaps_;
  BlockSlab blocks_;
};

}  // namespace ferro
