// The only exception type of the driver layer.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace ferro {

// A refusal of the driver other than out of memory. `what()` names the call, the CUDA error, the
// size if there is one, and the device. The state of the allocator is unchanged. `code()` is the
// driver's error number; 0 if no call failed but the device's properties are unsuitable.
class DriverError : public std::runtime_error {
 public:
  DriverError(const std::string& call, const std::string& error_name, int code, std::size_t bytes,
              int device)
      : std::runtime_error("ferro_alloc: " + call + " failed with " + error_name +
                           (bytes != 0 ? " for " + std::to_string(bytes) + " bytes" : "") +
                           " on device " + std::to_string(device)),
        code_(code) {}

  int code() const { return code_; }
  // Whether the error ended the context of the call: all its work is over, and every later call
  // there fails in the same way.
  bool ends_context() const {
    return code_ == CUDA_ERROR_ILLEGAL_ADDRESS || code_ == CUDA_ERROR_ASSERT ||
           code_ == CUDA_ERROR_ECC_UNCORRECTABLE || code_ == CUDA_ERROR_LAUNCH_TIMEOUT ||
           code_ == CUDA_ERROR_CONTAINED || code_ == CUDA_ERROR_TENSOR_MEMORY_LEAK ||
           code_ == CUDA_ERROR_EXTERNAL_DEVICE ||
           (code_ >= CUDA_ERROR_HARDWARE_STACK_ERROR && code_ <= CUDA_ERROR_LAUNCH_FAILED);
  }

 private:
  int code_;
};

}  // namespace ferro
