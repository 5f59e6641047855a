// Reads quantized tensors by operators that are evaluated, in place of kernels whose results would be
// unknown.
#pragma once

namespace ferro::values {

// Comes before the operators are wrapped, and once.
void install_quantized();

}  // namespace ferro::values
