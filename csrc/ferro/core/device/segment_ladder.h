// The classic layout's way through a request, in PyTorch's order: pending frees, a cached block,
// the callbacks, collection of old segments, a new segment, pools that lend, oversize segments,
// all cached segments, failure.
//
// It runs under the climb lock from the start, as PyTorch's runs under the one lock of a device:
// what it decides depends on all pools, and programs that compare the two see the same order of
// events.
#pragma once

#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/reclaimer.h"

namespace ferro {

class SegmentLadder {
 public:
  SegmentLadder(const DeviceParts& parts, Reclaimer& reclaimer)
      : parts_(parts), reclaimer_(reclaimer) {}

  struct Outcome {
    BlockView block;         // a null `ptr`: failed
    std::size_t wanted = 0;  // bytes that the driver was to give
    bool rejected = false;   // beyond the rejection limit
  };
  // `before_growing` is called once when no cached block fits.
  template <typename Function>
  Outcome allocate(const PoolId& id, StreamId stream, const Request& request,
                   Function before_growing) {
    Search search = begin(id, stream, request);
    if (const BlockView block = find_cached(search); block.ptr != kNull) {
      return {block};
    }
    before_growing();
    return climb(search);
  }

 private:
  // One request on its way.
  struct Search {
    PoolId id;
    StreamId stream;
    Request request;
    SegmentHeap& heap;
    SegmentRules rules;
    bool rejected = false;
  };
  Search begin(const PoolId& id, StreamId stream, const Request& request);
  BlockView find_cached(const Search& search);
  BlockView allocate_in_new_segment(Search& search);
  Outcome climb(Search& search);
  bool collects(const SegmentRules& rules) const;
  void collect_old_segments(const Search& search);
  bool release_oversize_segments(const Search& search);

  const DeviceParts& parts_;
  Reclaimer& reclaimer_;
};

}  // namespace ferro
