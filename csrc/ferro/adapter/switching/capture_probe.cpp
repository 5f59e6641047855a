#include "ferro/adapter/switching/capture_probe.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace ferro {
namespace {

constexpr int kStreamsPerPool = 32;  // c10's pools of streams wrap around after this many

bool is_capturing(c10::cuda::CUDAStream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = C10_CUDA_ERROR_HANDLED(cudaStreamIsCapturing(stream.stream(), &status));
  // The answer for the default stream while a stream that synchronises with it captures.
  if (error == cudaErrorStreamCaptureImplicit) {
    C10_CUDA_CLEAR_ERROR();
    return true;
  }
  C10_CUDA_CHECK(error);
  return status != cudaStreamCaptureStatusNone;
}

bool any_pool_stream_captures(c10::DeviceIndex device) {
  const int highest = 1 - c10::cuda::max_compile_time_stream_priorities;
  for (int priority = 0; priority >= highest; --priority) {
    for (int i = 0; i < kStreamsPerPool; ++i) {
      if (is_capturing(c10::cuda::getStreamFromPool(priority, device))) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

bool capture_is_running(const std::function<bool(c10::DeviceIndex)>& may_capture) {
  // The queries must not disturb the capture that they look for.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    if (!c10::cuda::hasPrimaryContext(device)) {
      continue;
    }
    const c10::cuda::CUDAGuard guard(device);
    if (is_capturing(c10::cuda::getCurrentCUDAStream(device)) ||
        (may_capture(device) && any_pool_stream_captures(device))) {
      return true;
    }
  }
  return false;
}

bool is_diverting(c10::cuda::CUDACachingAllocator::CUDAAllocator& native, c10::DeviceIndex device) {
  if (!native.initialized()) {
    return false;
  }
  // When it empties its cache, it first waits for its events, but only while it diverts nothing.
  const std::int64_t before = native.getDeviceStats(device).num_sync_all_streams;
  native.emptyCache({0, 0});
  return native.getDeviceStats(device).num_sync_all_streams == before;
}

}  // namespace ferro
