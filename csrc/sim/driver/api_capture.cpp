// Driver functions: stream capture.
#include "sim/driver/submission.h"

using ferro::sim::Capture;
using ferro::sim::Graph;
using ferro::sim::GraphNode;
using ferro::sim::Machine;
using ferro::sim::Stream;

namespace {

CUresult begin(Machine& machine, CUstream handle, CUstreamCaptureMode mode,
               std::shared_ptr<Graph> graph, std::span<GraphNode* const> front) {
  Stream* stream = machine.find_stream(handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream == &stream->context->legacy) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture != nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  const auto capture =
      std::make_shared<Capture>(machine.next_capture_id(), mode, *stream, std::move(graph));
  capture->join(capture, *stream, front);
  machine.captures().push_back(capture);
  return CUDA_SUCCESS;
}

// `out` may be null when a capture to an existing graph ends.
CUresult end(Machine& machine, CUstream handle, CUgraph* out) {
  if (out != nullptr) {
    *out = nullptr;
  }
  Stream* stream = machine.find_stream(handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  const auto capture = stream->capture;
  if (capture == nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (!capture->is_origin(*stream)) {
    capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode() != CU_STREAM_CAPTURE_MODE_RELAXED && !capture->owned_by_this_thread()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool is_new = !capture->records_to_existing_graph();
  if (out == nullptr && is_new) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::erase(machine.captures(), capture);
  std::shared_ptr<Graph> graph;
  const CUresult result = capture->end(graph);
  if (graph != nullptr) {
    if (out != nullptr) {
      *out = reinterpret_cast<CUgraph>(graph.get());
    }
    if (is_new) {
      machine.graphs().emplace(graph.get(), graph);
    }
  }
  return result;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  return stream.capture == nullptr  ? CU_STREAM_CAPTURE_STATUS_NONE
         : stream.capture->active() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                    : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

// The stream whose capture state is queried. Null, with the error, for an unknown handle, and for
// the legacy default stream while a blocking stream is captured. A query invalidates no capture.
Stream* stream_to_query(Machine& machine, CUstream handle, CUresult& result) {
  Stream* stream = machine.find_stream(handle);
  result = stream == nullptr ? machine.unknown_stream() : CUDA_SUCCESS;
  if (stream != nullptr && stream == &stream->context->legacy) {
    for (const auto& capture : machine.captures()) {
      if (capture->has_blocking_stream(*stream->context)) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
    }
  }
  return result == CUDA_SUCCESS ? stream : nullptr;
}

CUresult update(Machine& machine, CUstream handle, CUgraphNode* nodes, std::size_t count,
                unsigned flags) {
  Stream* stream = machine.find_stream(handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  if (stream->capture == nullptr || !stream->capture->active()) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  std::vector<GraphNode*> given;
  if (!stream->capture->graph().find_all(nodes, count, given)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    stream->capture->exempt(stream->capture_front);
    stream->capture_front = std::move(given);
    return CUDA_SUCCESS;
  }
  stream->capture->join(stream->capture, *stream, given);
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  FERRO_SIM_CALL(0);
  return call.finish(begin(call.machine(), stream, mode, std::make_shared<Graph>(), {}));
}

FERRO_SIM_API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle,
                                          const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                          size_t count, CUstreamCaptureMode mode) {
  FERRO_SIM_CALL(0);
  Graph* graph = call.machine().find_graph(handle);
  std::vector<GraphNode*> front;
  if (graph == nullptr || !graph->find_all(dependencies, count, front)) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  return call.finish(begin(call.machine(), stream, mode, graph->shared_from_this(), front));
}

FERRO_SIM_API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  FERRO_SIM_CALL(0);
  return call.finish(end(call.machine(), stream, graph));
}

FERRO_SIM_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FERRO_SIM_CALL(0);
  CUresult result = CUDA_SUCCESS;
  if (const Stream* stream = stream_to_query(call.machine(), handle, result)) {
    *status = status_of(*stream);
  }
  return call.finish(result);
}

FERRO_SIM_API cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                        cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies,
                                        const CUgraphEdgeData** edges, size_t* count) {
  FERRO_SIM_CALL(0);
  CUresult result = CUDA_SUCCESS;
  Stream* stream = stream_to_query(call.machine(), handle, result);
  if (stream == nullptr || status == nullptr) {
    return call.finish(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
  }
  *status = status_of(*stream);
  if (stream->capture == nullptr || !stream->capture->active()) {
    return CUDA_SUCCESS;
  }
  if (id != nullptr) {
    *id = stream->capture->id();
  }
  if (graph != nullptr) {
    *graph = reinterpret_cast<CUgraph>(&stream->capture->graph());
  }
  if (dependencies != nullptr) {
    *dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_front.data());
  }
  if (edges != nullptr) {
    // No edge has data.
    stream->capture_edges.assign(stream->capture_front.size(), CUgraphEdgeData{});
    *edges = stream->capture_edges.data();
  }
  if (count != nullptr) {
    *count = stream->capture_front.size();
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                                   const CUgraphEdgeData*, size_t count,
                                                   unsigned flags) {
  FERRO_SIM_CALL(0);
  return call.finish(update(call.machine(), stream, nodes, count, flags));
}

FERRO_SIM_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  FERRO_SIM_QUERY();
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  std::swap(*mode, call.machine().thread().capture_mode);
  return CUDA_SUCCESS;
}
