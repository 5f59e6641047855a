#include "ferro/adapter/graphs/tensor_scalar.h"

#include "ferro/adapter/torch/convert.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ferro {
namespace {

template <typename T>
std::uint64_t bits_as(const c10::Scalar& value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  const T number = value.to<T>();
  std::uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof(T));
  return bits;
}

// The number in the lowest bytes, as a tensor of that type stores it.
std::uint64_t scalar_bits(const c10::Scalar& value, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return bits_as<bool>(value);
    case c10::ScalarType::Byte:
      return bits_as<std::uint8_t>(value);
    case c10::ScalarType::Char:
      return bits_as<std::int8_t>(value);
    case c10::ScalarType::Short:
      return bits_as<std::int16_t>(value);
    case c10::ScalarType::Int:
      return bits_as<std::int32_t>(value);
    case c10::ScalarType::Long:
      return bits_as<std::int64_t>(value);
    case c10::ScalarType::UInt16:
      return bits_as<std::uint16_t>(value);
    case c10::ScalarType::UInt32:
      return bits_as<std::uint32_t>(value);
    case c10::ScalarType::UInt64:
      return bits_as<std::uint64_t>(value);
    case c10::ScalarType::Half:
      return bits_as<c10::Half>(value);
    case c10::ScalarType::BFloat16:
      return bits_as<c10::BFloat16>(value);
    case c10::ScalarType::Float:
      return bits_as<float>(value);
    case c10::ScalarType::Double:
      return bits_as<double>(value);
    case c10::ScalarType::ComplexFloat:
      return bits_as<c10::complex<float>>(value);
    default:
      TORCH_CHECK(false, "a DeviceScalar of ", type, " cannot be written");
  }
}

}  // namespace

TensorScalar::TensorScalar(at::Tensor tensor, StreamNumber bound)
    : tensor_(std::move(tensor)),
      type_(tensor_.scalar_type()),
      bound_(bound),
      driver_(driver_of(tensor_.device().index())),
      at_(to_device_ptr(tensor_.data_ptr())) {}

void TensorScalar::update(const c10::Scalar& value, StreamNumber number) {
  const std::uint64_t bits = scalar_bits(value, type_);
  run_on(number, bound_, tensor_.device().index(), [&](StreamId stream) {
    keep_for(stream);
    driver_.write(at_, bits, c10::elementSize(type_), stream);
  });
}

void TensorScalar::keep_for(StreamId stream) {
  const MutexLock lock(mutex_);
  if (std::ranges::find(streams_, stream) == streams_.end()) {
    c10::cuda::CUDACachingAllocator::recordStream(
        tensor_.storage().data_ptr(), torch_stream_of(stream, tensor_.device().index()));
    streams_.push_back(stream);
  }
}

}  // namespace ferro
