#include "ferro/graph/captured_graph.h"

namespace ferro {

CaptureStatus capture_status(Driver& driver, StreamId stream) {
  const CaptureInfo info = driver.capture_info(stream);
  // Active without an id: the driver's answer is about other streams.
  return info.status == CaptureStatus::kActive && info.id == 0 ? CaptureStatus::kNone : info.status;
}

void CapturedGraph::upload(StreamId stream) {
  const MutexLock lock(mutex_);
  if (!is_uploaded()) {
    graph_->upload(stream);
    uploaded_.store(true, std::memory_order_release);
  }
}

}  // namespace ferro
