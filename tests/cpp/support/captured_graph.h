// A graph that the driver itself runs, without a framework.
#pragma once

#include "ferro/driver/error.h"
#include "ferro/graph/captured_graph.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

namespace ferro::testing {

class DriverGraph final : public ExecutableGraph {
 public:
  // Ends the capture of the stream.
  explicit DriverGraph(StreamId stream) {
    CUgraph captured = nullptr;
    SimGpu::expect(SimGpu::api().stream_end_capture(raw(stream), &captured));
    SimGpu::expect(SimGpu::api().graph_instantiate(&graph_, captured, 0));
    SimGpu::expect(SimGpu::api().graph_destroy(captured));
  }
  ~DriverGraph() override { SimGpu::api().graph_exec_destroy(graph_); }
  void launch(StreamId stream) override {
    check("cuGraphLaunch", FaultyApi::table().graph_launch(graph_, raw(stream)));
  }
  void upload(StreamId stream) override {
    check("cuGraphUpload", FaultyApi::table().graph_upload(graph_, raw(stream)));
  }

 private:
  static void check(const char* call, CUresult result) {
    if (result != CUDA_SUCCESS) {
      throw DriverError(call, std::to_string(static_cast<int>(result)), static_cast<int>(result), 0,
                        0);
    }
  }

  CUgraphExec graph_ = nullptr;
};

}  // namespace ferro::testing
