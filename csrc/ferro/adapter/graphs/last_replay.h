// The last replay of several graphs of one device that must run one after the other.
#pragma once

#include "ferro/adapter/graphs/torch_graph.h"

#include <ATen/cuda/CUDAEvent.h>

#include <optional>

namespace ferro {

// Not thread-safe. All streams belong to one device. No-op on a stream that captures.
class LastReplay {
 public:
  // Whether the next work of `stream` certainly runs beside the last replay. The host waits for
  // `stream` if that replay is unfinished on another stream. Throws c10::Error.
  bool is_overtaken_by(StreamNumber stream, c10::DeviceIndex device);
  // Records a replay on `stream` as the last one.
  void set(StreamNumber stream, c10::DeviceIndex device);

 private:
  std::optional<at::cuda::CUDAEvent> end_;
  std::optional<StreamId> stream_;
};

}  // namespace ferro
