#include "ferro/adapter/graphs/tensor_scalar.h"

#include "ferro/adapter/torch/convert.h"

#include <ATen/Dispatch_v2.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ferro {
namespace {

// The number in the lowest bytes, as a tensor of that type stores it.
std::uint64_t scalar_bits(const c10::Scalar& value, c10::ScalarType type) {
  std::uint64_t bits = 0;
  const auto store = [&bits](const auto& number) {
    static_assert(sizeof(number) <= sizeof(bits));
    std::memcpy(&bits, &number, sizeof(number));
  };
  AT_DISPATCH_V2(type, "a DeviceScalar", AT_WRAP([&] { store(value.to<scalar_t>()); }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool,
                 at::kHalf, at::kBFloat16, at::kComplexFloat);
  return bits;
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
