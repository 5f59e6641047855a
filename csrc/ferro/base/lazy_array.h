// A fixed-size array of zeroed elements that uses host memory only where it was touched: for sparse
// tables as long as an address range.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <type_traits>

namespace ferro {

// Not thread-safe; `T`'s all-zero bytes are its empty value.
template <typename T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Throws std::bad_alloc when the host's address space is exhausted.
  explicit LazyArray(std::size_t size) : size_(size) {
    void* memory = nullptr;
    if (is_small()) {
      memory = std::calloc(size, sizeof(T));
    } else {
      memory = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      memory = memory == MAP_FAILED ? nullptr : memory;
    }
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(memory);
  }
  ~LazyArray() {
    if (is_small()) {
      std::free(data_);
    } else {
      munmap(data_, size_ * sizeof(T));
    }
  }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }

 private:
  // Small arrays are numerous, and a process is limited to about 65,000 mappings.
  bool is_small() const { return size_ * sizeof(T) < 64 * 1024; }

  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace ferro
