// Puts an evaluation around every operator that PyTorch has for CUDA, of those that are there and of
// those that libraries add later.
//
// It is the kernel that is replaced, in the dispatcher: calls from C++, from autograd's threads and
// from compiled code are seen as those from Python are.
#pragma once

namespace ferro::values {

// Once, for the life of the process. Without `compute` nothing is read or written, and only failures
// of libraries are kept. Throws std::runtime_error when the process has no simulated GPU.
void install(bool compute);

}  // namespace ferro::values
