// Driver functions: streams, host functions and kernel launches.
#include "ferro/base/bytes.h"
#include "sim/driver/outside_launch.h"
#include "sim/driver/submission.h"
#include "sim/streams/durations.h"

#include <cstring>
#include <optional>

using ferro::sim::Context;
using ferro::sim::Fill;
using ferro::sim::HostCall;
using ferro::sim::Kernel;
using ferro::sim::KernelArguments;
using ferro::sim::Machine;
using ferro::sim::OutsideLaunch;
using ferro::sim::Stream;

namespace {

struct Extent {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  std::uint64_t volume() const { return std::uint64_t{x} * y * z; }
  bool empty() const { return volume() == 0; }
};

CUresult create_stream(ferro::sim::ApiCall& call, CUstream* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto stream = std::make_unique<Stream>();
  stream->context = &call.context();
  stream->id = call.machine().next_id();
  stream->flags = flags;
  stream->priority = std::min(0, std::max(-5, priority));
  Stream* key = stream.get();
  call.context().streams.emplace(key, std::move(stream));
  *out = reinterpret_cast<CUstream>(key);
  return CUDA_SUCCESS;
}

// Finishes the call with the result of `act` on the stream of a handle.
template <typename Act>
CUresult with_stream(ferro::sim::ApiCall& call, CUstream handle, const Act& act) {
  Stream* stream = call.machine().find_stream(handle);
  return call.finish(stream == nullptr ? call.machine().unknown_stream() : act(*stream));
}

// The host must not query or wait for a capturing stream, nor for any other stream in a thread
// whose mode protects captures.
CUresult refuse_capturing(Machine& machine, Stream& stream) {
  if (machine.captures().empty()) {
    return CUDA_SUCCESS;
  }
  if (const CUresult result = machine.refuse_during_capture()) {
    return result;
  }
  if (stream.capture != nullptr) {
    stream.capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return refuse_implicit_dependency(machine, stream);
}

// Programs read back small constants, such as counters that kernels increment. Larger ones would
// take host memory for each byte, and no program reads them.
constexpr std::size_t kMaxConstantBytes = 4 * ferro::kKiB;

std::optional<Fill> constant_of(Machine& machine, CUfunction function, void** arguments) {
  const std::size_t element = machine.modules().constant_bytes_of(function);
  if (element == 0 || arguments == nullptr) {
    return std::nullopt;
  }
  Fill fill;
  fill.element = element;
  fill.width = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  std::memcpy(&fill.value, arguments[1], element);
  std::memcpy(&fill.to, arguments[2], sizeof(fill.to));
  return fill.width * element <= kMaxConstantBytes ? std::optional(fill) : std::nullopt;
}

// The kernel of a launch, with its duration in clock time.
Kernel timed_kernel(Machine& machine, CUfunction function, const Extent& grid, const Extent& block,
                    void** arguments) {
  if (!machine.scheduler().timed()) {
    return {};
  }
  const auto& card = *machine.config().card;
  if (machine.modules().is_product(function)) {
    const auto& product = *static_cast<const ferro::sim::Product*>(arguments[0]);
    if (machine.config().program_factor != 0) {
      machine.scheduler().spend(product_host_microseconds(product));
    }
    return {.duration = product_duration(card, product)};
  }
  return {.duration = kernel_duration(card, grid.volume() * block.volume(),
                                      machine.modules().bytes_of_thread(function))};
}

std::shared_ptr<KernelArguments> copy_of(Machine& machine, CUfunction handle, void** arguments) {
  const auto* function = machine.modules().find_function(handle);
  if (function == nullptr || arguments == nullptr) {
    return nullptr;
  }
  std::vector<std::size_t> sizes;
  for (const ferro::sim::Parameter& parameter : machine.modules().parameters_of(*function)) {
    sizes.push_back(parameter.bytes);
  }
  return sizes.empty() ? nullptr : std::make_shared<KernelArguments>(sizes, arguments);
}

CUresult launch_kernel(Machine& machine, OutsideLaunch& outside, CUfunction function,
                       CUstream stream, const Extent& grid, const Extent& block,
                       unsigned shared_bytes, void** arguments, void** extra = nullptr) {
  if (grid.empty() || block.empty() || block.x * block.y * block.z > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++outside.thread().launches;
  if (outside.is_outside()) {
    outside.record(machine, function);
  }
  ferro::sim::GraphNode* node = nullptr;
  Kernel kernel = timed_kernel(machine, function, grid, block, arguments);
  kernel.constant = constant_of(machine, function, arguments);
  const bool writes_constant = kernel.constant.has_value();
  const CUresult result =
      enqueue(machine, stream, CU_GRAPH_NODE_TYPE_KERNEL, std::move(kernel), &node);
  if (node != nullptr) {
    node->kernel.func = function;
    node->kernel.gridDimX = grid.x;
    node->kernel.gridDimY = grid.y;
    node->kernel.gridDimZ = grid.z;
    node->kernel.blockDimX = block.x;
    node->kernel.blockDimY = block.y;
    node->kernel.blockDimZ = block.z;
    node->kernel.sharedMemBytes = shared_bytes;
    node->arguments = copy_of(machine, function, arguments);
    node->kernel.kernelParams = node->arguments == nullptr ? nullptr : node->arguments->pointers();
  }
  if (outside.is_outside() && result == CUDA_SUCCESS && !writes_constant) {
    outside.forget(machine, function, stream, node, arguments, extra);
  }
  return result;
}

}  // namespace

FERRO_SIM_API cuStreamCreate(CUstream* out, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(create_stream(call, out, flags, 0));
}

FERRO_SIM_API cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(create_stream(call, out, flags, priority));
}

// Returns at once; queued work still runs.
FERRO_SIM_API cuStreamDestroy_v2(CUstream handle) {
  FERRO_SIM_CALL(0);
  Stream* stream = call.machine().find_stream(handle);
  if (stream == nullptr || !stream->context->streams.contains(stream)) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  if (const auto capture = stream->capture) {
    capture->invalidate();
    if (capture->is_origin(*stream)) {
      std::shared_ptr<ferro::sim::Graph> nothing;
      capture->end(nothing);
      std::erase(call.machine().captures(), capture);
    } else {
      capture->leave(*stream);
    }
  }
  Context& context = *stream->context;
  if (stream->tail != nullptr && !stream->tail->done()) {
    auto& orphans = stream->blocking() ? context.orphans : context.non_blocking_orphans;
    std::erase_if(orphans, [](const auto& tail) { return tail->done(); });
    orphans.push_back(stream->tail);
  }
  context.streams.erase(stream);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuStreamQuery(CUstream handle) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    if (const CUresult result = refuse_capturing(call.machine(), stream)) {
      return result;
    }
    return tails_of(stream).empty() ? stream.context->sticky_error : CUDA_ERROR_NOT_READY;
  });
}

FERRO_SIM_API cuStreamSynchronize(CUstream handle) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    if (const CUresult result = refuse_capturing(call.machine(), stream)) {
      return result;
    }
    // The stream may be destroyed by another thread while a host function runs.
    Context& context = *stream.context;
    call.machine().scheduler().run_until_done(tails_of(stream));
    return context.sticky_error;
  });
}

FERRO_SIM_API cuStreamGetFlags(CUstream handle, unsigned* flags) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}

FERRO_SIM_API cuStreamGetPriority(CUstream handle, int* priority) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

FERRO_SIM_API cuStreamGetId(CUstream handle, unsigned long long* id) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    *id = stream.id;
    return CUDA_SUCCESS;
  });
}

FERRO_SIM_API cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    *context = stream.context->handle();
    return CUDA_SUCCESS;
  });
}

FERRO_SIM_API cuStreamGetDevice(CUstream handle, CUdevice* device) {
  FERRO_SIM_CALL(0);
  return with_stream(call, handle, [&](Stream& stream) {
    *device = stream.context->device;
    return CUDA_SUCCESS;
  });
}

FERRO_SIM_API cuStreamSetAttribute(CUstream, CUstreamAttrID, const CUstreamAttrValue*) {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  FERRO_SIM_CONTEXT_CALL(0);
  if (function == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  return call.finish(
      enqueue(call.machine(), stream, CU_GRAPH_NODE_TYPE_HOST, HostCall{function, argument}));
}

FERRO_SIM_API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** arguments,
                             void** extra) {
  OutsideLaunch outside;
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(launch_kernel(call.machine(), outside, function, stream,
                                   {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                   shared_bytes, arguments, extra));
}

FERRO_SIM_API cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                               void** extra) {
  OutsideLaunch outside;
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(launch_kernel(call.machine(), outside, function, config->hStream,
                                   {config->gridDimX, config->gridDimY, config->gridDimZ},
                                   {config->blockDimX, config->blockDimY, config->blockDimZ},
                                   config->sharedMemBytes, arguments, extra));
}

FERRO_SIM_API cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes, CUstream stream,
                                        void** arguments) {
  OutsideLaunch outside;
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(launch_kernel(call.machine(), outside, function, stream,
                                   {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                   shared_bytes, arguments));
}
