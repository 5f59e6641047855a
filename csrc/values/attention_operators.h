// Replaces PyTorch's operators for cuDNN's attention, for which the simulated GPU has no library.
//
// They allocate as on an H100: results of the query's shape, statistics of the softmax, and a
// workspace for the sums of gradients. They compute nothing: results are zeros. Their kernels take
// as long as PyTorch's own.
#pragma once

namespace ferro::values {

// Called once; lasts for the life of the process.
void install_attention();

}  // namespace ferro::values
