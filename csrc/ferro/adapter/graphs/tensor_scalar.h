// A tensor of one number that a program writes between launches of graphs that read it.
#pragma once

#include "ferro/adapter/graphs/torch_graph.h"
#include "ferro/base/mutex.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <vector>

namespace ferro {

// Keeps the tensor, and its memory until all streams that wrote to it have finished. Thread-safe.
class TensorScalar {
 public:
  // `bound`: the stream of updates that name none (`run_on`); none: the current stream of each.
  TensorScalar(at::Tensor tensor, StreamNumber bound);
  // Writes the value in the order of the stream; the host neither waits nor keeps anything, however
  // far the device is behind. In a capture the write becomes part of the graph, with this value.
  // Throws c10::Error, as a tensor would, for a number that the type cannot hold.
  void update(const c10::Scalar& value, StreamNumber stream) FERRO_EXCLUDES(mutex_);

 private:
  void keep_for(StreamId stream) FERRO_EXCLUDES(mutex_);

  const at::Tensor tensor_;
  const c10::ScalarType type_;
  const StreamNumber bound_;
  Driver& driver_;
  const DevicePtr at_;
  Mutex mutex_;
  std::vector<StreamId> streams_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
