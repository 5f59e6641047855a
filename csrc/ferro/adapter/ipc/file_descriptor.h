// A file descriptor that is closed by its owner's end.
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

// One side of a transfer has no room for so many at a time.
class OutOfDescriptors : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ferro
