// cuDNN's attention, which the simulated GPU has no library for.
//
// Operators that allocate as PyTorch's do around cuDNN: results as wide as the query, statistics of
// the softmax, and what the gradients are summed up in, as PyTorch's own kernels do too. Measured on
// an H100, a step with cuDNN's attention took as much as one with PyTorch's, but for some KiB. They
// compute nothing: results are zeros.
#pragma once

namespace ferro::values {

// Once, for the life of the process, in the place of PyTorch's own.
void install_attention();

}  // namespace ferro::values
