// The last replay of some graphs on one device, which are to run one after the other.
#pragma once

#include "ferro/adapter/graphs/torch_graph.h"

#include <ATen/cuda/CUDAEvent.h>

#include <optional>

namespace ferro {

// Not thread-safe. Streams are of one device. Does nothing on a stream that captures.
class LastReplay {
 public:
  // Is the next work of `stream` certain to run beside the last replay? The host waits for the
  // stream where that replay was on another one and is not over: then it is certain if the stream
  // is done first. Throws c10::Error.
  bool is_overtaken_by(StreamNumber stream, c10::DeviceIndex device);
  // `stream` was given a replay.
  void set(StreamNumber stream, c10::DeviceIndex device);

 private:
  std::optional<at::cuda::CUDAEvent> end_;
  std::optional<StreamId> stream_;
};

}  // namespace ferro
