// PyTorch's graphs behind the interface of CapturedGraph.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/driver/driver.h"
#include "ferro/graph/captured_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace ferro {

// The value of torch.cuda.Stream.cuda_stream; none means the current stream.
using StreamNumber = std::optional<std::uint64_t>;
StreamId stream_of(StreamNumber number, c10::DeviceIndex device);
c10::cuda::CUDAStream torch_stream_of(StreamId stream, c10::DeviceIndex device);
// `capture_status` of the stream. Throws c10::Error.
CaptureStatus status_of(StreamId stream, c10::DeviceIndex device);

// Calls `work` with `asked`, else with `bound`, else with the current stream. If the program did not
// ask for the bound stream, that stream waits for the current one before the work, and the current
// one for it afterwards, so that work on either is ordered; except while the bound stream captures.
// Throws c10::Error, and what `work` throws.
void run_on(StreamNumber asked, StreamNumber bound, c10::DeviceIndex device,
            c10::function_ref<void(StreamId)> work);

// A graph that PyTorch captured on `device`. `replay` is PyTorch's own launch on the current
// stream, which also advances random numbers and calls hooks. Streams belong to that device; `bound`
// is that of launches which name none. `pool` may be null, and need not be the pool of the graph's
// memory. Throws c10::Error. As thread-safe as PyTorch's graph.
class DeviceGraph {
 public:
  DeviceGraph(std::shared_ptr<at::cuda::CUDAGraph> graph, std::function<void()> replay,
              c10::DeviceIndex device, std::shared_ptr<CapturePool> pool, StreamNumber bound);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void launch(StreamNumber stream);
  void upload(StreamNumber stream) { graph_.upload(stream_of(stream ? stream : bound_, device_)); }
  const CapturedGraph& graph() const { return graph_; }
  // None where ferro_alloc does not own the memory.
  std::optional<GraphSizes> sizes() const;

 private:
  const c10::DeviceIndex device_;
  const StreamNumber bound_;
  const std::uint64_t capture_;  // the driver's id
  const PoolId memory_;
  CapturedGraph graph_;
};

// A new id for the memory of a graph that is captured without a pool, as PyTorch gives it.
PoolId new_capture_id();

// `graph.capture_begin` on the current stream, which a capture that runs there only refuses. `mode` is
// the `capture_error_mode`. Throws c10::Error.
void begin_capture(at::cuda::CUDAGraph& graph, const PoolId& pool, const std::string& mode);

// Called after a failed capture of this thread on that stream. Ends the capture if PyTorch did not,
// and resets the state of PyTorch's random generator and of the allocator.
void settle_after_failed_capture(c10::DeviceIndex device, std::uint64_t stream);

// The driver of a device, whether or not ferro_alloc is installed. Throws std::runtime_error with
// one sentence if there is no driver or no such device.
Driver& driver_of(c10::DeviceIndex device);

// Null if ferro_alloc was never installed or the device was not used yet.
const CudaAllocator* allocator_of(c10::DeviceIndex device);

}  // namespace ferro
