#include "ferro/adapter/graphs/last_replay.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace ferro {

bool LastReplay::is_overtaken_by(StreamNumber number, c10::DeviceIndex device) {
  const StreamId stream = stream_of(number, device);
  if (!stream_ || *stream_ == stream || is_capturing(status_of(stream, device))) {
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
  if (is_capturing(status_of(stream, device))) {
    return;
  }
  if (!end_) {
    end_.emplace(cudaEventDisableTiming);
  }
  end_->record(torch_stream_of(stream, device));
  stream_ = stream;
}

}  // namespace ferro
