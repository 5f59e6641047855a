// Replaces PyTorch's operators for cuDNN's attention, for which the simulated GPU has no library.
//
// They allocate like PyTorch's: results of the query's shape, statistics of the softmax, and the
// sums of gradients. On an H100 a step with cuDNN's attention took the same memory as with
// PyTorch's own kernels, except for some KiB. They compute nothing: results are zeros.
#pragma once

namespace ferro::values {

// Called once; lasts for the life of the process.
void install_attention();

}  // namespace ferro::values
