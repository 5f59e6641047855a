// A file descriptor that closes itself.
#pragma once

#include <stdexcept>
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

// A process has no room for as many descriptors at a time.
class OutOfDescriptors : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ferro
