// The blocks of one device that were live at its peak, and the facts about each.
//
// Not thread-safe: `PeakRecorder` has a lock. Sizes are the requested bytes, rounded up to 512.
// Invariant: live_bytes() = sum of the live blocks, peak_bytes() = sum of those of the peak >= it.
// An allocation, a free and a new peak take a constant time on average.
#pragma once

#include "ferro/core/types/observer.h"

#include <c10/core/Allocator.h>
#include <c10/util/ApproximateClock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace ferro {

// The purpose of a block. If several are declared for a block, the first of this list counts.
enum class BlockKind : std::uint8_t {
  kParameters,
  kBuffers,
  kOptimizerState,
  kGradients,
  kKvCache,
  kLibraries,    // workspaces that libraries requested
  kActivations,  // saved for the backward pass
  kGraphs,       // in a pool into which graphs are captured
  kTemporaries,  // freed in the phase of the program in which they were allocated
  kOther,
};

struct LiveBlock {
  std::size_t bytes = 0;
  std::uint32_t line = 0;  // of the program, 0: unknown
  std::uint32_t phase = 0;
  c10::approx_time_t made{};
  BlockTag tag = 0;
  c10::MempoolId_t pool{0, 0};
  BlockKind declared = BlockKind::kOther;
  bool made_in_backward = false;
  bool made_with_gradients = false;  // autograd was recording
  bool live = true;
  bool freed_in_backward = false;
  std::uint32_t freed_phase = 0;
  std::ptrdiff_t place_in_peak = -1;

  // The declared kind, else one derived from when the block was allocated and freed.
  BlockKind kind(bool in_graph_pool) const;
};

class LiveBlocks {
 public:
  // Returns the block that was live at the address, which it replaces; null for none.
  std::shared_ptr<LiveBlock> add(std::size_t address, LiveBlock block);
  // Returns the removed block; null if there is none that was allocated before `freed`.
  std::shared_ptr<LiveBlock> remove(std::size_t address, c10::approx_time_t freed,
                                    std::uint32_t phase, bool in_backward);
  // Declares the kind of the live block that begins there, if there is one.
  void declare(std::size_t address, BlockKind kind);

  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }
  const std::unordered_map<std::size_t, std::shared_ptr<LiveBlock>>& live() const { return live_; }
  const std::vector<std::shared_ptr<LiveBlock>>& at_peak() const { return peak_; }

 private:
  void take_peak();

  std::unordered_map<std::size_t, std::shared_ptr<LiveBlock>> live_;
  std::vector<std::shared_ptr<LiveBlock>> peak_;
  std::vector<std::shared_ptr<LiveBlock>> gone_;  // of the peak, freed since
  std::vector<std::shared_ptr<LiveBlock>> born_;  // since the peak; some may be freed already
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace ferro
