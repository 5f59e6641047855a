// A tensor of one number as a device scalar.
#pragma once

#include "ferro/adapter/graphs/torch_graph.h"
#include "ferro/base/mutex.h"
#include "ferro/graph/device_scalar.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <vector>

namespace ferro {

// Keeps the tensor, and its memory until all streams that wrote to it have finished. Thread-safe.
class TensorScalar {
 public:
  // `bound`: the stream of updates that name none (`run_on`); none: the current stream of each.
  TensorScalar(at::Tensor tensor, StreamNumber bound);
  // Writes the value in the order of the stream. Throws c10::Error, as a tensor would, for a number
  // that the type cannot hold.
  void update(const c10::Scalar& value, StreamNumber stream) FERRO_EXCLUDES(mutex_);

 private:
  void keep_for(StreamId stream) FERRO_EXCLUDES(mutex_);

  const at::Tensor tensor_;
  const c10::ScalarType type_;
  const StreamNumber bound_;
  DeviceScalar scalar_;
  Mutex mutex_;
  std::vector<StreamId> streams_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
