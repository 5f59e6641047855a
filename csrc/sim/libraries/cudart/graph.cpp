// Capture and graphs.
#include "sim/libraries/cudart/state.h"
#include "sim/libraries/cudart/user_object.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

using ferro::sim::finish;

static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

namespace {

cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  const cudaError_t ready = ferro::sim::ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  const CUresult result = cuGraphInstantiateWithFlags(exec, graph, flags);
  if (result == CUDA_SUCCESS) ferro::sim::share_user_objects(graph, *exec);
  return finish(result);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FERRO_SIM_FORWARD(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FERRO_SIM_FORWARD(cuStreamEndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  FERRO_SIM_FORWARD(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  cuuint64_t driver_id = 0;
  const cudaError_t ready = ferro::sim::ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  const CUresult result = cuStreamGetCaptureInfo(
      stream, reinterpret_cast<CUstreamCaptureStatus*>(status), &driver_id, graph, dependencies,
      reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  if (result == CUDA_SUCCESS && id != nullptr) *id = driver_id;
  return finish(result);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* edges, size_t count,
                                                unsigned flags) {
  FERRO_SIM_FORWARD(cuStreamUpdateCaptureDependencies(
      stream, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags));
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData* edges, size_t count,
                                          cudaStreamCaptureMode mode) {
  FERRO_SIM_FORWARD(cuStreamBeginCaptureToGraph(stream, graph, dependencies,
                                                reinterpret_cast<const CUgraphEdgeData*>(edges),
                                                count, static_cast<CUstreamCaptureMode>(mode)));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return finish(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  FERRO_SIM_FORWARD(cuGraphCreate(graph, flags));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ferro::sim::drop_user_objects(graph);
  return finish(cuGraphDestroy(graph));
}

cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return finish(cuGraphClone(clone, graph));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  ferro::sim::drop_user_objects(exec);
  return finish(cuGraphExecDestroy(exec));
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  cuuint64_t driver_flags = 0;
  const CUresult result = cuGraphExecGetFlags(exec, &driver_flags);
  if (result == CUDA_SUCCESS) *flags = driver_flags;
  return finish(result);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FERRO_SIM_FORWARD(cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  FERRO_SIM_FORWARD(cuGraphUpload(exec, stream));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return finish(cuGraphGetNodes(graph, nodes, count));
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return finish(cuGraphGetRootNodes(graph, nodes, count));
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edges, size_t* count) {
  return finish(cuGraphGetEdges(graph, from, to, reinterpret_cast<CUgraphEdgeData*>(edges), count));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  // The runtime numbers the types as the driver does.
  return finish(cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type)));
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return finish(cuGraphNodeGetDependencies(node, dependencies,
                                           reinterpret_cast<CUgraphEdgeData*>(edges), count));
}

cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* dependents,
                                           cudaGraphEdgeData* edges, size_t* count) {
  return finish(cuGraphNodeGetDependentNodes(node, dependents,
                                             reinterpret_cast<CUgraphEdgeData*>(edges), count));
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                     size_t count) {
  return finish(cuGraphAddDependencies(graph, from, to,
                                       reinterpret_cast<const CUgraphEdgeData*>(edges), count));
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* dependencies, size_t count) {
  return finish(cuGraphAddEmptyNode(node, graph, dependencies, count));
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                       const cudaGraphNode_t* dependencies, size_t count,
                                       cudaGraph_t child) {
  return finish(cuGraphAddChildGraphNode(node, graph, dependencies, count, child));
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                             const cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges,
                             size_t count, cudaGraphNodeParams* parameters) {
  static_assert(sizeof(cudaGraphNodeParams) == sizeof(CUgraphNodeParams));
  return finish(cuGraphAddNode(node, graph, dependencies,
                               reinterpret_cast<const CUgraphEdgeData*>(edges), count,
                               reinterpret_cast<CUgraphNodeParams*>(parameters)));
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) { return finish(cuGraphDestroyNode(node)); }

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned flags) {
  return finish(cuGraphDebugDotPrint(graph, path, flags));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
  return finish(
      cuGraphExecUpdate(exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info)));
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* out, cudaGraph_t graph,
                                             unsigned initial, unsigned flags) {
  const cudaError_t ready = ferro::sim::ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUcontext context = nullptr;
  (void)cuCtxGetCurrent(&context);
  CUgraphConditionalHandle handle = 0;
  const CUresult result = cuGraphConditionalHandleCreate(&handle, graph, context, initial, flags);
  if (result == CUDA_SUCCESS) *out = handle;
  return finish(result);
}

}  // extern "C"
