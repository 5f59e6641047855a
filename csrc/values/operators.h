// Wraps every CUDA operator of PyTorch in an evaluation, including those that libraries add later.
//
// Replaces the kernels in the dispatcher, so that calls from C++, autograd's threads and compiled
// code are evaluated like those from Python.
#pragma once

#include <cstdint>

namespace ferro::values {

// Wraps the operators at the first call, for the life of the process. Each call decides whether
// values are computed: without `compute` nothing is read or written, and only failures of libraries
// are kept. Throws std::runtime_error when the process has no simulated GPU. The caller holds the
// GIL.
void install(bool compute);

// The allocator's request of this number failed in this thread. If its operator ends without an
// exception, `done_without` lists it.
void note_failed_request(std::uint64_t number);
// Whether a convolution of cuDNN ran while cuDNN compared algorithms for PyTorch
// (torch.backends.cudnn.benchmark).
bool has_benchmarked();
// Between these calls (1 and -1) the thread launches kernels outside of operators, and tells by
// `ferro_sim::launch` what they write through their arguments.
void note_own_launches(int change);

}  // namespace ferro::values
