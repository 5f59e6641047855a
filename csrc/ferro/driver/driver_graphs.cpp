// Captures, graphs, and values that are written in the order of a stream.
#include "ferro/base/check.h"
#include "ferro/driver/call_scope.h"
#include "ferro/driver/driver.h"

namespace ferro {
namespace {

CUgraphExec raw(GraphExecId graph) { return reinterpret_cast<CUgraphExec>(graph); }

CUstreamCaptureMode raw(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::kGlobal:
      return CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CaptureMode::kThreadLocal:
      return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    case CaptureMode::kRelaxed:
      break;
  }
  return CU_STREAM_CAPTURE_MODE_RELAXED;
}

}  // namespace

void Driver::begin_capture(StreamId stream, CaptureMode mode) {
  const CallScope scope(*this);
  expect(api_.stream_begin_capture(raw(stream), raw(mode)), "cuStreamBeginCapture");
}

GraphExecId Driver::end_capture(StreamId stream) {
  const CallScope scope(*this);
  CUgraph captured = nullptr;
  expect(api_.stream_end_capture(raw(stream), &captured), "cuStreamEndCapture");
  CUgraphExec graph = nullptr;
  // As PyTorch does: what an earlier launch allocated as a node of the graph is freed by the next.
  const CUresult result =
      api_.graph_instantiate(&graph, captured, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  api_.graph_destroy(captured);
  expect(result, "cuGraphInstantiate");
  return GraphExecId{reinterpret_cast<std::uint64_t>(graph)};
}

void Driver::launch(GraphExecId graph, StreamId stream) {
  const CallScope scope(*this);
  expect(api_.graph_launch(raw(graph), raw(stream)), "cuGraphLaunch");
}

void Driver::upload(GraphExecId graph, StreamId stream) {
  const CallScope scope(*this);
  expect(api_.graph_upload(raw(graph), raw(stream)), "cuGraphUpload");
}

void Driver::destroy(GraphExecId graph) noexcept { api_.graph_exec_destroy(raw(graph)); }

// As fills, because their values travel in the command: a copy would need its source until it ran.
void Driver::write(DevicePtr at, std::uint64_t bits, std::size_t bytes, StreamId stream) {
  const CallScope scope(*this);
  const CUstream target = raw(stream);
  switch (bytes) {
    case 1:
      expect(api_.memset_d8_async(raw(at), static_cast<std::uint8_t>(bits), 1, target),
             "cuMemsetD8Async");
      return;
    case 2:
      expect(api_.memset_d16_async(raw(at), static_cast<std::uint16_t>(bits), 1, target),
             "cuMemsetD16Async");
      return;
    default:
      FERRO_CHECK(bytes == 4 || bytes == 8);
  }
  for (std::size_t done = 0; done < bytes; done += 4, bits >>= 32) {
    expect(api_.memset_d32_async(raw(at + done), static_cast<std::uint32_t>(bits), 1, target),
           "cuMemsetD32Async");
  }
}

}  // namespace ferro
