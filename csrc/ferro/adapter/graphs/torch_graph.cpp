#include "ferro/adapter/graphs/torch_graph.h"

#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/base/mutex.h"
#include "ferro/driver/cuda_api.h"

#include <ATen/cuda/CUDAGraphsUtils.cuh>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace ferro {
namespace {

cudaStream_t raw(StreamId stream) { return reinterpret_cast<cudaStream_t>(stream); }

class TorchGraph final : public ExecutableGraph {
 public:
  TorchGraph(std::shared_ptr<at::cuda::CUDAGraph> graph, std::function<void()> replay,
             c10::DeviceIndex device)
      : graph_(std::move(graph)), replay_(std::move(replay)), device_(device) {}

  void launch(StreamId stream) override {
    if (c10::cuda::getCurrentCUDAStream(device_).stream() == raw(stream)) {
      replay_();
      return;
    }
    const c10::cuda::CUDAStreamGuard guard(torch_stream_of(stream, device_));
    replay_();
  }
  void upload(StreamId stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaGraphUpload(graph_->raw_cuda_graph_exec(), raw(stream)));
  }

 private:
  const std::shared_ptr<at::cuda::CUDAGraph> graph_;
  const std::function<void()> replay_;
  const c10::DeviceIndex device_;
};

// The id is a protected member in all versions of PyTorch.
struct GraphMembers : at::cuda::CUDAGraph {
  static std::uint64_t capture_id(const at::cuda::CUDAGraph& graph) {
    return graph.*(&GraphMembers::capture_id_);
  }
};

}  // namespace

StreamId stream_of(StreamNumber number, c10::DeviceIndex device) {
  return number ? StreamId{*number}
                : to_stream_id(c10::cuda::getCurrentCUDAStream(device).stream());
}

c10::cuda::CUDAStream torch_stream_of(StreamId stream, c10::DeviceIndex device) {
  return c10::cuda::getStreamFromExternal(raw(stream), device);
}

CaptureStatus status_of(StreamId stream, c10::DeviceIndex device) {
  return with_torch_errors([&] { return capture_status(driver_of(device), stream); });
}

void run_on(StreamNumber asked, StreamNumber bound, c10::DeviceIndex device,
            c10::function_ref<void(StreamId)> work) {
  const StreamId stream = stream_of(asked ? asked : bound, device);
  const StreamId current = stream_of(std::nullopt, device);
  // A wait for work outside its capture would invalidate the capture.
  if (asked || stream == current || is_capturing(status_of(stream, device))) {
    work(stream);
    return;
  }
  const auto order = [device](StreamId before, StreamId after) {
    at::cuda::CUDAEvent event(cudaEventDisableTiming);
    event.record(torch_stream_of(before, device));
    event.block(torch_stream_of(after, device));
  };
  order(current, stream);
  try {
    work(stream);
  } catch (...) {
    order(stream, current);  // hooks of PyTorch may throw after a launch
    throw;
  }
  order(stream, current);
}

DeviceGraph::DeviceGraph(std::shared_ptr<at::cuda::CUDAGraph> graph, std::function<void()> replay,
                         c10::DeviceIndex device, std::shared_ptr<CapturePool> pool,
                         StreamNumber bound)
    : device_(device),
      bound_(bound),
      capture_(GraphMembers::capture_id(*graph)),
      memory_(to_pool_id(graph->pool())),
      graph_(std::make_unique<TorchGraph>(std::move(graph), std::move(replay), device),
             std::move(pool)) {}

DeviceGraph::~DeviceGraph() {
  if (const CudaAllocator* allocator = allocator_of(device_)) {
    allocator->forget_capture(device_, memory_, capture_);
  }
}

void DeviceGraph::launch(StreamNumber stream) {
  run_on(stream, bound_, device_, [this](StreamId on) { graph_.launch(on); });
}

std::optional<GraphSizes> DeviceGraph::sizes() const {
  const CudaAllocator* allocator = allocator_of(device_);
  return allocator == nullptr ? std::nullopt : allocator->graph_sizes(device_, memory_, capture_);
}

PoolId new_capture_id() { return to_pool_id(at::cuda::MemPool::graph_pool_handle(false)); }

void begin_capture(at::cuda::CUDAGraph& graph, const PoolId& pool, const std::string& mode) {
  TORCH_CHECK(mode == "global" || mode == "thread_local" || mode == "relaxed",
              "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ",
              mode);
  // PyTorch enters the state in the graph before it refuses that. The destructor of the graph then
  // ends the process, because the state does not have the graph.
  at::cuda::assertNotCapturing("Cannot register the state during capturing stage.");
  graph.capture_begin(to_mempool_id(pool), mode == "global" ? cudaStreamCaptureModeGlobal
                                           : mode == "thread_local"
                                               ? cudaStreamCaptureModeThreadLocal
                                               : cudaStreamCaptureModeRelaxed);
}

// When a capture ends with an error, PyTorch keeps its random generator's capture and its
// diversion. A capture that succeeds clears both. Throws if this thread cannot end the capture.
void settle_after_failed_capture(c10::DeviceIndex device, std::uint64_t number) {
  const c10::cuda::CUDAStream stream = torch_stream_of(StreamId{number}, device);
  if (is_capturing(status_of(StreamId{number}, device))) {
    cudaGraph_t unwanted = nullptr;  // PyTorch failed after the capture had begun
    if (C10_CUDA_ERROR_HANDLED(cudaStreamEndCapture(stream.stream(), &unwanted)) == cudaSuccess) {
      C10_CUDA_CHECK(cudaGraphDestroy(unwanted));
    }
    C10_CUDA_CLEAR_ERROR();
    // Otherwise the next capture fails, and the destructor of its graph ends the process.
    TORCH_CHECK(!is_capturing(status_of(StreamId{number}, device)),
                "the stream still captures: only the thread that began the capture can end it");
  }
  const c10::cuda::CUDAStreamGuard guard(stream);
  at::cuda::CUDAGraph empty(/*keep_graph=*/true);  // never instantiated
  empty.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
  // One node, because PyTorch warns about an empty graph.
  const cudaError_t error = cudaLaunchHostFunc(
      stream.stream(), [](void*) {}, nullptr);
  empty.capture_end();
  C10_CUDA_CHECK(error);
}

// The allocator's driver; a separate one before the first install and the first use of CUDA.
Driver& driver_of(c10::DeviceIndex device) {
  if (const CudaAllocator* allocator = allocator_of(device)) {
    return allocator->core_of(device)->driver();
  }
  const LoadedCudaApi& loaded = load_cuda_api();
  if (loaded.api == nullptr) {
    throw std::runtime_error(loaded.why);
  }
  if (device < 0 || device >= c10::cuda::device_count()) {
    throw std::runtime_error("there is no CUDA device " + std::to_string(device));
  }
  static Mutex mutex;
  static auto* drivers = new std::map<c10::DeviceIndex, Driver>;
  const MutexLock lock(mutex);
  return drivers->try_emplace(device, *loaded.api, device).first->second;
}

const CudaAllocator* allocator_of(c10::DeviceIndex device) {
  const CudaAllocator* allocator = installed_allocator();
  const bool known = allocator != nullptr && allocator->core_of(device) != nullptr;
  return known ? allocator : nullptr;
}

}  // namespace ferro
