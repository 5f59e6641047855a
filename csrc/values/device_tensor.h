// A tensor of the simulated GPU as addresses, so that work that is done later keeps no memory alive.
//
// Plain values. Reading and writing happen within a function that the GPU calls in order, and below
// the program's modes (`BelowModes`).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace ferro::values {

class DeviceTensor {
 public:
  // None for what has no elements in device memory at known places: sparse, nested, empty.
  static std::optional<DeviceTensor> describe(const at::Tensor& tensor);

  std::int64_t elements() const { return elements_; }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  at::ScalarType type() const { return type_; }

  // A tensor of the host to read into. Its memory is not set.
  at::Tensor make_host_tensor() const;
  // False when some of the bytes are unknown.
  bool read(const at::Tensor& host) const;
  // False, with nothing written, when the sizes or the types differ.
  bool write(const at::Tensor& host, bool known) const;
  // Makes all bytes unknown, and zeros too unless they are to keep.
  void forget(bool keep) const;

 private:
  // Bytes from the first element to the last.
  std::size_t span() const;
  // Are the elements most of what lies between the first and the last?
  bool compact() const;
  // How many elements of the last dimensions lie as one; `outer` receives the number of the others.
  std::int64_t elements_together(std::size_t* outer = nullptr) const;
  // Visits the contiguous pieces, in the order of the elements.
  template <typename Visit>
  void for_each_piece(const Visit& visit) const;

  std::uint64_t address_ = 0;
  std::size_t element_bytes_ = 0;
  std::int64_t elements_ = 0;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType type_ = at::kFloat;
};

}  // namespace ferro::values
