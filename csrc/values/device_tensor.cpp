#include "values/device_tensor.h"

#include "values/gpu.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

namespace ferro::values {
namespace {

// Above this number of pieces, the bytes between them are forgotten too.
constexpr std::int64_t kMaxPieces = 4096;

}  // namespace

std::optional<DeviceTensor> DeviceTensor::describe(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cuda() ||
      tensor.unsafeGetTensorImpl()->is_python_dispatch() || tensor.numel() == 0 ||
      !tensor.has_storage() || tensor.is_conj() || tensor.is_neg()) {
    return std::nullopt;
  }
  DeviceTensor described;
  described.address_ = reinterpret_cast<std::uint64_t>(tensor.const_data_ptr());
  described.element_bytes_ = tensor.element_size();
  described.elements_ = tensor.numel();
  described.sizes_ = tensor.sizes().vec();
  described.strides_ = tensor.strides().vec();
  described.type_ = tensor.scalar_type();
  return described.address_ == 0 ? std::nullopt : std::optional(std::move(described));
}

std::size_t DeviceTensor::span() const {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    last += (sizes_[i] - 1) * strides_[i];
  }
  return static_cast<std::size_t>(last + 1) * element_bytes_;
}

bool DeviceTensor::compact() const {
  constexpr std::size_t kSlack = 64 << 10;
  return span() <= std::max(kSlack, 2 * element_bytes_ * static_cast<std::size_t>(elements_));
}

std::int64_t DeviceTensor::elements_together(std::size_t* outer) const {
  std::size_t dimensions = sizes_.size();
  std::int64_t together = 1;
  while (dimensions > 0 && (sizes_[dimensions - 1] == 1 || strides_[dimensions - 1] == together)) {
    together *= sizes_[--dimensions];
  }
  if (outer != nullptr) {
    *outer = dimensions;
  }
  return together;
}

template <typename Visit>
void DeviceTensor::for_each_piece(const Visit& visit) const {
  std::size_t outer = 0;
  const std::int64_t together = elements_together(&outer);
  const std::size_t bytes = static_cast<std::size_t>(together) * element_bytes_;
  std::vector<std::int64_t> index(outer, 0);
  std::int64_t offset = 0;
  while (true) {
    visit(address_ + static_cast<std::uint64_t>(offset) * element_bytes_, bytes);
    std::size_t i = outer;
    while (i > 0 && ++index[i - 1] == sizes_[i - 1]) {
      --i;
      offset -= (sizes_[i] - 1) * strides_[i];
      index[i] = 0;
    }
    if (i == 0) {
      return;
    }
    offset += strides_[i - 1];
  }
}

at::Tensor DeviceTensor::make_host_tensor() const {
  // Without the dispatcher, so that the program's modes do not see it.
  return compact() ? at::Tensor(at::detail::empty_strided_cpu(sizes_, strides_, type_))
                   : at::Tensor(at::detail::empty_cpu(sizes_, type_));
}

bool DeviceTensor::read(const at::Tensor& host) const {
  auto* to = static_cast<std::byte*>(host.mutable_data_ptr());
  if (compact()) {
    return gpu().read(address_, to, span()) == 1;
  }
  bool known = true;
  for_each_piece([&](std::uint64_t at, std::size_t bytes) {
    known = gpu().read(at, to, bytes) == 1 && known;
    to += bytes;
  });
  return known;
}

bool DeviceTensor::write(const at::Tensor& host, bool known) const {
  if (host.sizes() != at::IntArrayRef(sizes_) || host.scalar_type() != type_ || !host.is_cpu()) {
    return false;
  }
  const bool dense = span() == element_bytes_ * static_cast<std::size_t>(elements_);
  at::Tensor laid_out = host;
  if (dense ? host.strides() != at::IntArrayRef(strides_) : !host.is_contiguous()) {
    laid_out = dense ? at::Tensor(at::detail::empty_strided_cpu(sizes_, strides_, type_))
                     : at::Tensor(at::detail::empty_cpu(sizes_, type_));
    laid_out.copy_(host);
  }
  const auto* from = static_cast<const std::byte*>(laid_out.const_data_ptr());
  if (dense) {
    gpu().write(address_, from, span(), known ? 1 : 0, 0);
    return true;
  }
  for_each_piece([&](std::uint64_t at, std::size_t bytes) {
    gpu().write(at, from, bytes, known ? 1 : 0, 0);
    from += bytes;
  });
  return true;
}

void DeviceTensor::forget(bool keep) const {
  if (span() == element_bytes_ * static_cast<std::size_t>(elements_)) {
    gpu().write(address_, nullptr, span(), 0, keep ? 1 : 0);
    return;
  }
  if (elements_ / elements_together() > kMaxPieces) {
    gpu().write(address_, nullptr, span(), 0, 1);
    return;
  }
  for_each_piece([&](std::uint64_t at, std::size_t bytes) {
    gpu().write(at, nullptr, bytes, 0, keep ? 1 : 0);
  });
}

}  // namespace ferro::values
