// Workspaces of convolutions that no GPU was asked for.
//
// cuDNN's choice among its kernels is not documented. Decision trees that were trained on two million
// answers of an H200 vote on the kind of kernel: which tensors it copies, whether it copies them
// with more channels or for eight groups at a time, and whether it needs more, such as partial sums.
// The bytes of copies follow exactly from the shape. Other trees predict the rest.
#pragma once

#include "sim/libraries/cudnn/workspaces.h"

#include <cstdint>

namespace ferro::sim {

// Bytes. Thread-safe.
std::int64_t predicted_workspace(const ConvolutionShape& shape, Pass pass);

}  // namespace ferro::sim
