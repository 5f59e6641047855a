// A heap of segments, each one piece of memory with addresses of its own: PyTorch's own layout, also
// for pools whose blocks must not be split or that bring an allocator of their own.
//
// Thread-safe as Heap is.
#pragma once

#include "ferro/core/heap/heap.h"
#include "ferro/core/policy/segment_policy.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace ferro {

class SegmentHeap final : public Heap {
 public:
  SegmentHeap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind,
              PoolBytes* pool_bytes = nullptr)
      : Heap(context, pool, stream, kind, pool_bytes) {}

  // A null `ptr`: no free block fits.
  BlockView allocate(const Request& request, const SegmentRules& rules) FERRO_EXCLUDES(mutex_);
  // Would it find one?
  bool has_block_for(const Request& request, const SegmentRules& rules) FERRO_EXCLUDES(mutex_);
  // From memory that the caller got for this request; the heap keeps it as a segment.
  BlockView allocate_in_new_segment(DevicePtr base, std::size_t bytes, const Request& request,
                                    const SegmentRules& rules) FERRO_EXCLUDES(mutex_);
  BlockView allocate_at(DevicePtr ptr, const Request& request) override FERRO_EXCLUDES(mutex_);

  // Segments of one free block, in order of size, then address. O(free blocks).
  std::vector<FreeSegment> free_segments() FERRO_EXCLUDES(mutex_);
  // Takes a free segment out, to be released by the caller; null when it is not free any more. The
  // observer is told that it goes.
  std::unique_ptr<Span> detach(DevicePtr base, const CallContext& context) FERRO_EXCLUDES(mutex_);
  // Puts one back that could not be released.
  void attach(std::unique_ptr<Span> segment) FERRO_EXCLUDES(mutex_);

  // Segments leave no mappings.
  void on_mapping_removed(Block*) override {}

 private:
  BlockView split_and_mark_live(Block* block, const Request& request, const SegmentRules& rules)
      FERRO_REQUIRES(mutex_);
  void free_in_segment(Block* block) override FERRO_REQUIRES(mutex_);
  void end_oversize(Block* block) override FERRO_REQUIRES(mutex_);
  SplitCounts count_splits() const override FERRO_REQUIRES(mutex_);
  Block* cut_out(Block* block, DevicePtr begin, std::size_t bytes) override FERRO_REQUIRES(mutex_);
  Block* add(std::unique_ptr<Span> segment) FERRO_REQUIRES(mutex_);
  void insert_free(Block* block) FERRO_REQUIRES(mutex_);
  void note_age(Block* block) FERRO_REQUIRES(mutex_);
  StatClass stat_class() const { return kind() == HeapKind::kSmallSegments ? kSmall : kLarge; }
};

}  // namespace ferro
