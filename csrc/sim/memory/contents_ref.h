// A reference to contents (`contents.h`), and contents made of plain bytes.
//
// Not thread-safe.
#pragma once

#include "sim/memory/contents.h"

#include <cstddef>
#include <utility>

namespace ferro::sim {

// One reference to contents; without contents it stands for zeros.
class ContentsRef {
 public:
  ContentsRef() = default;
  explicit ContentsRef(ferro_sim_contents* contents) : contents_(contents) {
    if (contents_ != nullptr) {
      ++contents_->references;
    }
  }
  ContentsRef(const ContentsRef& other) : ContentsRef(other.contents_) {}
  ContentsRef(ContentsRef&& other) noexcept : contents_(std::exchange(other.contents_, nullptr)) {}
  ContentsRef& operator=(ContentsRef other) noexcept {
    std::swap(contents_, other.contents_);
    return *this;
  }
  ~ContentsRef() {
    if (contents_ != nullptr && --contents_->references == 0) {
      contents_->kind->destroy(contents_);
    }
  }

  ferro_sim_contents* get() const { return contents_; }
  // Passes the reference to the caller.
  ferro_sim_contents* release() { return std::exchange(contents_, nullptr); }
  bool is_zeros() const { return contents_ == nullptr; }
  // For `HeldRanges`.
  bool is_positional() const { return !is_zeros(); }
  bool operator==(const ContentsRef& other) const { return contents_ == other.contents_; }
  // Computes the bytes. Null if they cannot be computed, and for zeros.
  const std::byte* bytes() const {
    return is_zeros() ? nullptr : static_cast<const std::byte*>(contents_->kind->bytes(contents_));
  }
  // The number of its bytes if they are computed, else 0.
  std::size_t computed() const {
    return is_zeros() || contents_->kind->computed == nullptr
               ? 0
               : contents_->kind->computed(contents_);
  }

 private:
  ferro_sim_contents* contents_ = nullptr;
};

// Contents with a copy of these bytes.
ContentsRef copy_bytes(const void* source, std::size_t bytes);
// The bytes of such contents; null for others.
const std::byte* copied_bytes(const ContentsRef& contents);

}  // namespace ferro::sim
