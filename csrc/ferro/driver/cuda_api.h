// The table of CUDA driver functions that ferro_alloc uses.
//
// One row per function: the member's name and the exported symbol with its oldest acceptable
// version suffix. `load_cuda_api()` fills the table from libcuda.so.1 at run time, so the package
// imports without a driver. The simulated GPU (csrc/sim) fills the same table. Only the contract
// suite uses the rows under "tests"; `Driver` uses the others. A member of the second list is null
// if the driver lacks the function.
#pragma once

#include <cuda.h>

#include <string>

// clang-format off
#define FERRO_CUDA_API(X)                                                      \
  /* library, devices, contexts */                                             \
  X(init, cuInit)                                                              \
  X(get_error_name, cuGetErrorName)                                            \
  X(device_get_count, cuDeviceGetCount)                                        \
  X(device_get, cuDeviceGet)                                                   \
  X(device_get_attribute, cuDeviceGetAttribute)                                \
  X(device_total_mem, cuDeviceTotalMem_v2)                                     \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain)                              \
  X(primary_ctx_get_state, cuDevicePrimaryCtxGetState)                         \
  X(ctx_get_current, cuCtxGetCurrent)                                          \
  X(ctx_set_current, cuCtxSetCurrent)                                          \
  /* memory */                                                                 \
  X(mem_get_info, cuMemGetInfo_v2)                                             \
  X(mem_get_granularity, cuMemGetAllocationGranularity)                        \
  X(mem_alloc, cuMemAlloc_v2)                                                  \
  X(mem_free, cuMemFree_v2)                                                    \
  X(mem_address_reserve, cuMemAddressReserve)                                  \
  X(mem_address_free, cuMemAddressFree)                                        \
  X(mem_create, cuMemCreate)                                                   \
  X(mem_release, cuMemRelease)                                                 \
  X(mem_map, cuMemMap)                                                         \
  X(mem_unmap, cuMemUnmap)                                                     \
  X(mem_set_access, cuMemSetAccess)                                            \
  X(mem_export, cuMemExportToShareableHandle)                                  \
  X(mem_import, cuMemImportFromShareableHandle)                                \
  X(mem_host_alloc, cuMemHostAlloc)                                            \
  X(mem_free_host, cuMemFreeHost)                                              \
  /* copies to and from the host */                                            \
  X(mem_host_register, cuMemHostRegister_v2)                                   \
  X(mem_host_unregister, cuMemHostUnregister)                                  \
  X(memcpy_htod_async, cuMemcpyHtoDAsync_v2)                                   \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2)                                   \
  X(stream_create, cuStreamCreate)                                             \
  X(stream_synchronize, cuStreamSynchronize)                                   \
  /* events and streams */                                                     \
  X(event_create, cuEventCreate)                                               \
  X(event_record, cuEventRecord)                                               \
  X(event_query, cuEventQuery)                                                 \
  X(event_synchronize, cuEventSynchronize)                                     \
  X(stream_wait_event, cuStreamWaitEvent)                                      \
  X(stream_get_ctx, cuStreamGetCtx)                                            \
  X(stream_is_capturing, cuStreamIsCapturing)                                  \
  X(stream_get_capture_info, cuStreamGetCaptureInfo_v3)                        \
  X(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode)           \
  /* captured work, and stream-ordered writes */                               \
  X(graph_node_get_dependencies, cuGraphNodeGetDependencies_v2)                \
  X(memset_d8_async, cuMemsetD8Async)                                          \
  X(memset_d16_async, cuMemsetD16Async)                                        \
  X(memset_d32_async, cuMemsetD32Async)                                        \
  X(stream_write_value64, cuStreamWriteValue64_v2)                             \
  /* parameters of graph nodes */                                              \
  X(graph_get_nodes, cuGraphGetNodes)                                          \
  X(graph_node_get_type, cuGraphNodeGetType)                                   \
  X(graph_kernel_node_get_params, cuGraphKernelNodeGetParams_v2)               \
  X(graph_memcpy_node_get_params, cuGraphMemcpyNodeGetParams)                  \
  X(graph_memset_node_get_params, cuGraphMemsetNodeGetParams)                  \
  X(graph_child_node_get_graph, cuGraphChildGraphNodeGetGraph)                 \
  X(kernel_get_function, cuKernelGetFunction)                                  \
  /* tests: ordering, capture and replay of work */                            \
  X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2)                         \
  X(ctx_synchronize, cuCtxSynchronize)                                         \
  X(event_destroy, cuEventDestroy_v2)                                          \
  X(memcpy_dtod_async, cuMemcpyDtoDAsync_v2)                                   \
  X(stream_begin_capture, cuStreamBeginCapture_v2)                             \
  X(stream_end_capture, cuStreamEndCapture)                                    \
  X(graph_instantiate, cuGraphInstantiateWithFlags)                            \
  X(graph_launch, cuGraphLaunch)                                               \
  X(graph_upload, cuGraphUpload)                                               \
  X(graph_exec_destroy, cuGraphExecDestroy)                                    \
  X(graph_destroy, cuGraphDestroy)                                             \
  X(mem_get_access, cuMemGetAccess)                                            \
  X(ipc_get_mem_handle, cuIpcGetMemHandle)                                     \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2)                                \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle)                                 \
  X(ipc_get_event_handle, cuIpcGetEventHandle)                                 \
  X(ipc_open_event_handle, cuIpcOpenEventHandle)                               \
  X(device_can_access_peer, cuDeviceCanAccessPeer)                             \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess)                             \
  X(ctx_disable_peer_access, cuCtxDisablePeerAccess)                           \
  X(memcpy_peer_async, cuMemcpyPeerAsync)                                      \
  X(launch_host_func, cuLaunchHostFunc)                                        \
  X(stream_destroy, cuStreamDestroy_v2)                                        \
  X(stream_query, cuStreamQuery)
#define FERRO_CUDA_API_OPTIONAL(X)                                             \
  /* since CUDA 12.4 */                                                        \
  X(func_get_param_info, cuFuncGetParamInfo)                                   \
  /* since CUDA 12.5 */                                                        \
  X(ctx_record_event, cuCtxRecordEvent)
// clang-format on

namespace ferro {

// Function pointers. In a filled table, only members of the second list may be null.
struct CudaApi {
#define FERRO_CUDA_API_MEMBER(member, symbol) decltype(&::symbol) member = nullptr;
  FERRO_CUDA_API(FERRO_CUDA_API_MEMBER)
  FERRO_CUDA_API_OPTIONAL(FERRO_CUDA_API_MEMBER)
#undef FERRO_CUDA_API_MEMBER

  // The directory of the fabric channels that this process may use.
  const char* fabric_channels = "/dev/nvidia-caps-imex-channels";
};

// The table of the process's libcuda.so.1. On failure `api` is null and `why` is one sentence: the
// library is missing, or the driver too old: it lacks the named function. Thread-safe; loaded once.
struct LoadedCudaApi {
  const CudaApi* api = nullptr;
  std::string why;
};
const LoadedCudaApi& load_cuda_api();

}  // namespace ferro
