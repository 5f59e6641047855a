// The allocator's memory that a graph uses, found among the words of its nodes' parameters. For the
// debug mode of graphs.
//
// A word counts if it lies in a live block or in a block freed during the capture. So unused parts
// of arguments count too; while a `ScrubbedStacks` exists, these hold no addresses of earlier
// calls. Not thread-safe, except as WatchedBlocks documents.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/driver/types.h"
#include "ferro/graph/watched_blocks.h"

#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {

class GraphUses {
 public:
  struct Use {
    WatchedBlocks::Handle block;
    bool workspace;  // of cuBLAS
  };

  // Called at the end of the capture of `stream`. `mark`: `freed_in_captures()` of the watched
  // blocks at its beginning. Throws c10::Error.
  GraphUses(c10::DeviceIndex device, StreamId stream, std::size_t mark);
  // Called once, after the capture into `pool` has ended.
  void settle(const PoolId& pool);

  // Blocks of other pools, including the default pool.
  const std::vector<Use>& outside() const { return outside_; }
  // Blocks of the graph's pool that other captures received.
  const std::vector<Use>& within() const { return within_; }
  // Blocks that its own capture received: results, state, and scratch, which is freed.
  const std::vector<Use>& own() const { return own_; }
  // The blocks of `own` that are live in pages that the capture of `other`, into the same pool,
  // received: its replays may overwrite them. Pages may move in later captures.
  std::vector<Use> in_scratch_of(const GraphUses& other) const;
  // Whether the capture received any of these bytes.
  bool is_of_capture(DevicePtr ptr, std::size_t bytes) const {
    return addresses_.overlaps(ptr, bytes);
  }

 private:
  const c10::DeviceIndex device_;
  const std::uint64_t capture_;  // the driver's id
  const std::size_t mark_;
  PoolId pool_;
  std::vector<DevicePtr> words_;
  std::vector<Use> outside_;
  std::vector<Use> within_;
  std::vector<Use> own_;
  AddressRanges addresses_;
};

// While it exists, each operator of PyTorch in a capture begins on a stack without addresses of
// earlier calls, because arguments of kernels have unwritten parts, such as the ends of arrays.
class ScrubbedStacks {
 public:
  ScrubbedStacks();
  ~ScrubbedStacks();
  ScrubbedStacks(const ScrubbedStacks&) = delete;
  ScrubbedStacks& operator=(const ScrubbedStacks&) = delete;

 private:
  const at::CallbackHandle callback_;
};

}  // namespace ferro
