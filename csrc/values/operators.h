// Wraps every CUDA operator of PyTorch in an evaluation, including those that libraries add later.
//
// Replaces the kernels in the dispatcher, so that calls from C++, autograd's threads and compiled
// code are evaluated like those from Python.
#pragma once

namespace ferro::values {

// Called once; lasts for the life of the process. Without `compute` nothing is read or written, and
// only failures of libraries are recorded. Throws std::runtime_error if the process has no
// simulated GPU.
void install(bool compute);

}  // namespace ferro::values
