// A file descriptor that closes itself, and failures of system calls.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>

namespace ferro {

// -1 is none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~FileDescriptor() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  // The driver takes a descriptor by its address.
  const int& get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// The error of the call that has just failed, as errno tells.
inline std::runtime_error failure_of(const char* call) {
  return std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

// A process has no room for as many descriptors at a time.
class OutOfDescriptors : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ferro
