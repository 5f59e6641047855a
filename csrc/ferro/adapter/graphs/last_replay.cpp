#include "ferro/adapter/graphs/last_replay.h"

#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/graph/capture_status.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace ferro {
namespace {

bool is_recording(StreamId stream, c10::DeviceIndex device) {
  return with_torch_errors([&] { return is_capturing(capture_status(driver_of(device), stream)); });
}

}  // namespace

bool LastReplay::is_overtaken_by(StreamNumber number, c10::DeviceIndex device) {
  const StreamId stream = stream_of(number, device);
  if (!stream_ || *stream_ == stream || is_recording(stream, device)) {
    return false;
  }
  // Keeps these calls from invalidating a capture of another thread.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  if (end_->query()) {
    return false;
  }
  at::cuda::CUDAEvent here(cudaEventDisableTiming);
  here.record(torch_stream_of(stream, device));
  here.synchronize();
  return !end_->query();
}

void LastReplay::set(StreamNumber number, c10::DeviceIndex device) {
  const StreamId stream = stream_of(number, device);
  if (is_recording(stream, device)) {
    return;
  }
  if (!end_) {
    end_.emplace(cudaEventDisableTiming);
  }
  end_->record(torch_stream_of(stream, device));
  stream_ = stream;
}

}  // namespace ferro
