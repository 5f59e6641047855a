// Driver functions: contexts. Every device has its primary context and no other.
#include "sim/driver/api_call.h"

using ferro::sim::Context;
using ferro::sim::Machine;

namespace {

Context* primary(Machine& machine, CUdevice device) {
  return device >= 0 && device < machine.device_count() ? &machine.device(device).context : nullptr;
}

Context* find_or_current(Machine& machine, CUcontext handle) {
  return handle == nullptr ? machine.current_context() : machine.find_context(handle);
}

CUresult drop_reference(Machine& machine, Context& context) {
  if (!context.active()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (--context.references == 0) {
    machine.scheduler().run_device(context.device);
    context.sticky_error = CUDA_SUCCESS;
    machine.device(context.device).memory.return_overhead(machine.config().context_bytes());
  }
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  FERRO_SIM_QUERY();
  Context* context = primary(call.machine(), device);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  if (context->references++ == 0) {
    call.machine().device(device).memory.take_overhead(call.machine().config().context_bytes());
  }
  *out = context->handle();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FERRO_SIM_QUERY();
  Context* context = primary(call.machine(), device);
  return call.finish(context == nullptr ? CUDA_ERROR_INVALID_DEVICE
                                        : drop_reference(call.machine(), *context));
}

FERRO_SIM_API cuDevicePrimaryCtxReset_v2(CUdevice device) {
  FERRO_SIM_QUERY();
  Context* context = primary(call.machine(), device);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  call.machine().scheduler().run_device(device);
  context->sticky_error = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  FERRO_SIM_QUERY();
  Context* context = primary(call.machine(), device);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *flags = context->flags;
  *active = context->active() ? 1 : 0;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  FERRO_SIM_QUERY();
  Context* context = primary(call.machine(), device);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  context->flags = flags;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetCurrent(CUcontext* out) {
  FERRO_SIM_QUERY();
  Context* context = call.machine().current_context();
  *out = context == nullptr ? nullptr : context->handle();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxSetCurrent(CUcontext handle) {
  FERRO_SIM_QUERY();
  auto& stack = call.machine().thread().contexts;
  Context* context = call.machine().find_context(handle);
  if (handle != nullptr && context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (!stack.empty()) {
    stack.pop_back();
  }
  if (context != nullptr) {
    stack.push_back(context);
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxPushCurrent_v2(CUcontext handle) {
  FERRO_SIM_QUERY();
  Context* context = call.machine().find_context(handle);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  call.machine().thread().contexts.push_back(context);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxPopCurrent_v2(CUcontext* out) {
  FERRO_SIM_QUERY();
  auto& stack = call.machine().thread().contexts;
  if (stack.empty()) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (out != nullptr) {
    *out = stack.back()->handle();
  }
  stack.pop_back();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetDevice(CUdevice* device) {
  FERRO_SIM_QUERY();
  Context* context = call.machine().current_context();
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  *device = context->device;
  return CUDA_SUCCESS;
}

// Newer minor versions of the driver have this, and cuCtxSynchronize_v2.
FERRO_SIM_API cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  FERRO_SIM_QUERY();
  Context* context = find_or_current(call.machine(), handle);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  *device = context->device;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetFlags(unsigned* flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  *flags = call.context().flags;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxSetFlags(unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  call.context().flags = flags;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetId(CUcontext handle, unsigned long long* id) {
  FERRO_SIM_QUERY();
  Context* context = find_or_current(call.machine(), handle);
  if (context == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  *id = static_cast<unsigned long long>(context->device) + 1;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetApiVersion(CUcontext, unsigned* version) {
  FERRO_SIM_QUERY();
  *version = 3020;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxSynchronize() {
  FERRO_SIM_CONTEXT_CALL(0);
  const int device = call.context().device;
  for (const auto& capture : call.machine().captures()) {
    if (capture->device() == device) {
      capture->invalidate();
      call.finish(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
  }
  if (call.refused()) {
    return call.result();
  }
  call.machine().scheduler().run_device(device);
  return call.finish(call.context().sticky_error);
}

// Synchronizes with `handle` as the current context.
FERRO_SIM_API cuCtxSynchronize_v2(CUcontext handle) {
  if (handle == nullptr) {
    return cuCtxSynchronize();
  }
  if (const CUresult pushed = cuCtxPushCurrent(handle); pushed != CUDA_SUCCESS) {
    return pushed;
  }
  const CUresult result = cuCtxSynchronize();
  cuCtxPopCurrent(nullptr);
  return result;
}

FERRO_SIM_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FERRO_SIM_CONTEXT_CALL(0);
  if (least != nullptr) {
    *least = 0;
  }
  if (greatest != nullptr) {
    *greatest = -5;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetLimit(size_t* value, CUlimit limit) {
  FERRO_SIM_CONTEXT_CALL(0);
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      *value = 1024;
      break;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      *value = 7 * 1024 * 1024;
      break;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      *value = 8 * 1024 * 1024;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxSetLimit(CUlimit, size_t) {
  FERRO_SIM_CONTEXT_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxGetCacheConfig(CUfunc_cache* config) {
  FERRO_SIM_CONTEXT_CALL(0);
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxSetCacheConfig(CUfunc_cache) {
  FERRO_SIM_CONTEXT_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxResetPersistingL2Cache() {
  FERRO_SIM_CONTEXT_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  Context* other = call.machine().find_context(peer);
  if (other == nullptr || other == &call.context() || flags != 0) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (!call.context().peers.insert(other->device).second) {
    return call.finish(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  }
  call.machine().device(other->device).allocations.set_peer_access(call.context().device, true);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuCtxDisablePeerAccess(CUcontext peer) {
  FERRO_SIM_CONTEXT_CALL(0);
  Context* other = call.machine().find_context(peer);
  if (other == nullptr || call.context().peers.erase(other->device) == 0) {
    return call.finish(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  }
  call.machine().device(other->device).allocations.set_peer_access(call.context().device, false);
  return CUDA_SUCCESS;
}
