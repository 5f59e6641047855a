// Driver functions: the parameters of the nodes of graphs.
#include "sim/driver/api_call.h"

#include <memory>
#include <utility>
#include <variant>
#include <vector>

using ferro::sim::Copy;
using ferro::sim::Fill;
using ferro::sim::Graph;
using ferro::sim::GraphNode;

namespace {

const GraphNode* node_of_type(ferro::sim::ApiCall& call, CUgraphNode handle, CUgraphNodeType type) {
  const GraphNode* node = call.machine().find_node(handle);
  return node != nullptr && node->type() == type ? node : nullptr;
}

CUDA_MEMCPY3D to_driver(const Copy& copy) {
  CUDA_MEMCPY3D params{};
  params.WidthInBytes = copy.width;
  params.Height = copy.height;
  params.Depth = 1;
  params.srcMemoryType = copy.from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  params.srcPitch = copy.from_pitch;
  if (copy.from_device) {
    params.srcDevice = copy.from;
  } else {
    params.srcHost = reinterpret_cast<const void*>(copy.from);
  }
  params.dstMemoryType = copy.to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  params.dstPitch = copy.to_pitch;
  if (copy.to_device) {
    params.dstDevice = copy.to;
  } else {
    params.dstHost = reinterpret_cast<void*>(copy.to);
  }
  return params;
}

CUDA_MEMSET_NODE_PARAMS to_driver(const Fill& fill) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = fill.to;
  params.pitch = fill.pitch;
  params.value = static_cast<unsigned>(fill.value);
  params.elementSize = static_cast<unsigned>(fill.element);
  params.width = fill.width;
  params.height = fill.height;
  return params;
}

}  // namespace

FERRO_SIM_API cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = node_of_type(call, handle, CU_GRAPH_NODE_TYPE_KERNEL);
  if (node == nullptr || params == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *params = node->kernel;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* params) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = node_of_type(call, handle, CU_GRAPH_NODE_TYPE_MEMCPY);
  if (node == nullptr || params == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *params = to_driver(std::get<Copy>(node->work()));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* params) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = node_of_type(call, handle, CU_GRAPH_NODE_TYPE_MEMSET);
  if (node == nullptr || params == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *params = to_driver(std::get<Fill>(node->work()));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = node_of_type(call, handle, CU_GRAPH_NODE_TYPE_GRAPH);
  if (node == nullptr || graph == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *graph = reinterpret_cast<CUgraph>(node->child.get());
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph,
                                             CUcontext, unsigned, unsigned) {
  FERRO_SIM_CALL(0);
  if (handle == nullptr || call.machine().find_graph(graph) == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *handle = call.machine().next_id();
  return CUDA_SUCCESS;
}

// Adds only conditional nodes with one body.
FERRO_SIM_API cuGraphAddNode_v2(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
                                const CUgraphEdgeData*, size_t count, CUgraphNodeParams* params) {
  FERRO_SIM_CALL(0);
  Graph* graph = call.machine().find_graph(handle);
  std::vector<GraphNode*> before;
  if (out == nullptr || params == nullptr || graph == nullptr ||
      !graph->find_all(dependencies, count, before)) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || params->conditional.size != 1) {
    return call.finish(CUDA_ERROR_NOT_SUPPORTED);
  }
  GraphNode* node = graph->add(params->type, ferro::sim::Marker{}, std::move(before));
  node->child = std::make_shared<Graph>();
  node->body = reinterpret_cast<CUgraph>(node->child.get());
  params->conditional.phGraph_out = &node->body;
  *out = node->handle();
  return CUDA_SUCCESS;
}
