#include "ferro/graph/captured_graph.h"

namespace ferro {

void CapturedGraph::upload(StreamId stream) {
  const MutexLock lock(mutex_);
  if (!is_uploaded()) {
    graph_->upload(stream);
    uploaded_.store(true, std::memory_order_release);
  }
}

}  // namespace ferro
