// A tensor of the simulated GPU by its addresses, so that queued work keeps no memory alive.
//
// Plain values. `read` and `write` are called within a function that the GPU calls in the order of
// a stream, below the program's modes (`BelowModes`).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace ferro::values {

class DeviceTensor {
 public:
  // None for a tensor without strided elements in device memory: sparse, nested, empty.
  static std::optional<DeviceTensor> describe(const at::Tensor& tensor);

  std::int64_t elements() const { return elements_; }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  at::ScalarType type() const { return type_; }

  // A host tensor to read into, uninitialised.
  at::Tensor make_host_tensor() const;
  // False if some bytes are unknown.
  bool read(const at::Tensor& host) const;
  // False, with nothing written, if the sizes or types differ.
  bool write(const at::Tensor& host, bool known) const;
  // Makes all bytes unknown, and zeros them unless `keep`.
  void forget(bool keep) const;

 private:
  // Bytes from the first element to the last.
  std::size_t span() const;
  // Whether the elements are most of the bytes between the first and the last.
  bool compact() const;
  // The number of contiguous elements in the last dimensions; `outer`: the number of dimensions
  // before.
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
