// Workspaces of convolutions that were measured on a GPU, and of those that are like one of them.
//
// How cuDNN chooses among its kernels is not documented, but the choice seldom differs between two
// convolutions of one window whose sizes differ by less than a factor of two. A kernel's workspace
// consists of copies of tensors and of partial sums, so that of one convolution gives another's.
//
// `python -m benchmarks.training.workspaces --table` measures the cases in measured.inc again.
#pragma once

#include "sim/libraries/cudnn/workspaces.h"

#include <cstdint>
#include <optional>

namespace ferro::sim {

// Bytes; exact for a measured convolution. None where no measured one is like it. Thread-safe.
std::optional<std::int64_t> measured_workspace(const ConvolutionShape& shape, Pass pass);

}  // namespace ferro::sim
