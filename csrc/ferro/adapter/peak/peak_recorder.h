// Follows the allocations and frees of the current allocator, and keeps the blocks that were live
// at the peak of each device, with their kinds and the lines of the program that requested them.
//
// Works with every allocator of PyTorch that has trace trackers. Thread-safe. The tracker may be
// called under a lock of the allocator, so it never calls the allocator. It may receive a free
// after another thread has received the memory again; the times of the events show the order.
// PyTorch cannot detach trackers, so it stays until the process ends; `stop` disables it.
#pragma once

#include "ferro/adapter/peak/live_blocks.h"
#include "ferro/adapter/torch/torch_compat.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ferro {

// The second base class of contexts that know the line of their request. The program's thread
// creates them before it enters the allocator.
struct RequestContext {
  virtual ~RequestContext() = default;
  std::uint32_t line = 0;
};

// A sum of blocks of one kind, line and tag.
struct BlockSum {
  BlockKind kind;
  std::uint32_t line;
  BlockTag tag;  // of `tag_names()`
  std::size_t bytes;
  std::size_t count;
};

// One for the process.
class PeakRecorder {
 public:
  // Starts to record the current allocator; called again after another one is installed. `context`
  // creates a context for each request, which is a `RequestContext` too; `in_backward` returns
  // whether this thread is in a backward pass. The allocator keeps the last `max_entries` of its
  // history. CUDA must be initialised.
  static void start(c10::cuda::CUDACachingAllocator::CreateContextFn context, bool (*in_backward)(),
                    std::size_t max_entries);
  static void stop();

  // Begins a new phase of the program: a backward pass, an optimizer's step, or the work between.
  static void begin_phase();
  // Declares the kind of the live blocks that begin at these addresses.
  static void declare(c10::DeviceIndex device, const std::vector<std::size_t>& addresses,
                      BlockKind kind);
  // Declares the workspaces of cuBLAS to be `kLibraries`.
  static void declare_libraries();

  // True once after the peak of some device has grown by a tenth.
  static bool take_growth();
  static std::size_t peak_bytes(c10::DeviceIndex device);
  static std::size_t live_bytes(c10::DeviceIndex device);
  // Of the blocks at the peak, or of those that are live now.
  static std::vector<BlockSum> sums(c10::DeviceIndex device, bool at_peak);
  // Addresses and kinds of the last freed blocks, as many as the history has entries, in the order
  // of their frees, and then of the live ones. So the blocks at one address are in their order.
  static std::vector<std::pair<std::size_t, BlockKind>> kinds(c10::DeviceIndex device);
};

}  // namespace ferro
