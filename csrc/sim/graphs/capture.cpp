#include "sim/graphs/capture.h"

#include <algorithm>

namespace ferro::sim {

void Capture::join(const std::shared_ptr<Capture>& self, Stream& stream,
                   std::span<GraphNode* const> front) {
  streams_.insert(&stream);
  stream.capture = self;
  for (GraphNode* node : front) {
    if (std::find(stream.capture_front.begin(), stream.capture_front.end(), node) ==
        stream.capture_front.end()) {
      stream.capture_front.push_back(node);
    }
  }
}

void Capture::leave(Stream& stream) { streams_.erase(&stream); }

bool Capture::has_blocking_stream(const Context& context) const {
  return std::any_of(streams_.begin(), streams_.end(), [&context](const Stream* stream) {
    return stream->context == &context && stream->blocking();
  });
}

bool Capture::has_stream_of(const Context& context) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&context](const Stream* stream) { return stream->context == &context; });
}

GraphNode* Capture::record(Stream& stream, CUgraphNodeType type, Work work) {
  GraphNode* node = graph_->add(type, std::move(work), stream.capture_front);
  stream.capture_front.assign(1, node);
  return node;
}

bool Capture::all_joined() const {
  const auto& front = origin_->capture_front;
  const auto leaves = graph_->leaves();
  return std::all_of(leaves.begin(), leaves.end(), [&](GraphNode* leaf) {
    return exempted_.contains(leaf) || std::find(front.begin(), front.end(), leaf) != front.end();
  });
}

CUresult Capture::end(std::shared_ptr<Graph>& graph) {
  const CUresult result = !active_        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : !all_joined() ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                          : CUDA_SUCCESS;
  // The streams own this object: keep it until all have released it.
  const std::set<Stream*> streams = std::move(streams_);
  const std::shared_ptr<Capture> self = (*streams.begin())->capture;
  for (Stream* stream : streams) {
    stream->capture_front.clear();
    stream->capture = nullptr;
  }
  ended_ = true;
  if (result == CUDA_SUCCESS) {
    graph = std::move(graph_);
  }
  return result;
}

}  // namespace ferro::sim
