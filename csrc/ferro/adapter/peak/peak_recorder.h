// Follows what the allocator in place gives and takes, and keeps what was live at the peak of each
// device: whose blocks they are, and which line of the program asked for them.
//
// Works with every allocator of PyTorch that has trace trackers. Thread-safe. The tracker may be called
// under a lock of the allocator, so it calls nothing back. It may hear of a free after another thread
// was given the memory again; times tell. Once attached it stays until the process
// ends, since PyTorch has no way to take one off; `stop` makes it do nothing.
#pragma once

#include "ferro/adapter/peak/live_blocks.h"
#include "ferro/adapter/torch/torch_compat.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {

// What the context of a request says about itself, if it is of this class too. Made by the program's
// thread before it enters the allocator.
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

// Of which blocks sums are made: those at the peak, those that are live now, those that were freed.
enum class BlocksOf { kPeak, kNow, kFreed };

class PeakRecorder {
 public:
  static PeakRecorder& get();

  // From now on, for the allocator in place; again after another was put in its place. `context`
  // makes a context for each request that is a `RequestContext` too, and `in_backward` says whether
  // this thread is in a backward pass. The allocator keeps the last `max_entries` of its history.
  // CUDA must be initialised.
  void start(c10::cuda::CUDACachingAllocator::CreateContextFn context, bool (*in_backward)(),
             std::size_t max_entries);
  void stop();

  // A new phase of the program begins: a backward pass, an optimizer's step, or what is between.
  void begin_phase();
  // The live blocks that begin at these addresses are of that kind.
  void say(c10::DeviceIndex device, const std::vector<std::size_t>& addresses, BlockKind kind);
  // The workspaces of cuBLAS are of kind `kLibraries`.
  void say_libraries();

  // True once after the peak of some device has grown by a tenth.
  bool take_growth();
  std::size_t peak_bytes(c10::DeviceIndex device);
  std::size_t live_bytes(c10::DeviceIndex device);
  // Freed blocks are summed up only where more than one entry is kept.
  std::vector<BlockSum> sums(c10::DeviceIndex device, BlocksOf which);

 private:
  PeakRecorder() = default;
};

}  // namespace ferro
