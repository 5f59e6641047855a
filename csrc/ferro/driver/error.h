// The one exception of the driver boundary.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace ferro {

// A refusal by the driver other than out of memory. `what()` names the call, the CUDA error, the
// size where there is one, and the device. The state of the allocator is what it was before.
// `code()` is the driver's number of the error; 0 where it refused no call, but what it offers will
// not do.
class DriverError : public std::runtime_error {
 public:
  DriverError(std::string call, std::string error_name, int code, std::size_t bytes, int device)
      : std::runtime_error("ferro_alloc: " + call + " failed with " + error_name +
                           (bytes != 0 ? " for " + std::to_string(bytes) + " bytes" : "") +
                           " on device " + std::to_string(device)),
        call_(std::move(call)),
        error_name_(std::move(error_name)),
        code_(code) {}

  const std::string& call() const { return call_; }
  const std::string& error_name() const { return error_name_; }
  int code() const { return code_; }

 private:
  std::string call_;
  std::string error_name_;
  int code_;
};

}  // namespace ferro
