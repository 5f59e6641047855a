// What a graph uses of the allocator's memory, found among the words that its nodes were given. For
// the debug mode of graphs.
//
// Words that lie in a live block count, and in one that was freed during the capture. So unused
// parts of arguments count too; while `ScrubbedStacks` exists these hold no addresses of earlier
// calls. Not thread-safe, but for what WatchedBlocks says.
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

  // At the end of the capture of `stream`. `mark`: `freed_in_captures()` of the watched blocks when
  // it began. Throws c10::Error.
  GraphUses(c10::DeviceIndex device, StreamId stream, std::size_t mark);
  // Once it has ended, into that pool. To be called once.
  void settle(const PoolId& pool);

  // Blocks of other pools, the default one among them.
  const std::vector<Use>& outside() const { return outside_; }
  // Blocks of the graph's pool that other captures were given.
  const std::vector<Use>& within() const { return within_; }
  // What its own capture was given: results and state, and the scratch, which is freed.
  const std::vector<Use>& own() const { return own_; }
  // Was the capture given any of these bytes?
  bool was_given(DevicePtr ptr, std::size_t bytes) const { return given_.meets(ptr, bytes); }

 private:
  const c10::DeviceIndex device_;
  const std::uint64_t capture_;  // the driver's id
  const std::size_t mark_;
  std::vector<DevicePtr> words_;
  std::vector<Use> outside_;
  std::vector<Use> within_;
  std::vector<Use> own_;
  AddressRanges given_;
};

// While it exists, each operator of PyTorch in a capture begins on a stack without addresses of
// earlier calls.
// Arguments of kernels have parts that nobody writes, such as the unused ends of arrays.
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
