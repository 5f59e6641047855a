// Driver functions: graphs and the edges between their nodes. The parameters of nodes are in
// api_graph_nodes.cpp.
#include "sim/driver/submission.h"
#include "sim/machine/perform.h"

#include <algorithm>
#include <cstdio>

using ferro::sim::Graph;
using ferro::sim::GraphExec;
using ferro::sim::GraphNode;
using ferro::sim::Machine;
using ferro::sim::Stream;

namespace {

// Returns a list as the driver does. Without an array it sets `count` to the length. With one it
// writes at most `count` elements, sets the rest of the array to null, and sets `count` to their
// number.
template <typename Item, typename Handle>
CUresult return_list(const std::vector<Item*>& items, Handle* out, size_t* count) {
  if (count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) {
      out[i] = i < items.size() ? reinterpret_cast<Handle>(items[i]) : nullptr;
    }
    *count = std::min(*count, items.size());
    return CUDA_SUCCESS;
  }
  *count = items.size();
  return CUDA_SUCCESS;
}

std::vector<GraphNode*> dependents(const GraphNode& node) {
  std::vector<GraphNode*> result;
  for (const auto& other : node.graph().nodes()) {
    const auto& before = other->before();
    if (std::find(before.begin(), before.end(), &node) != before.end()) {
      result.push_back(other.get());
    }
  }
  return result;
}

int current_device(Machine& machine) {
  const auto* context = machine.current_context();
  return context == nullptr ? 0 : context->device;
}

// Null when the current device cannot access memory of a copy or fill.
std::shared_ptr<GraphExec> make_exec(Machine& machine, const Graph& graph) {
  const int device = current_device(machine);
  auto exec = std::make_shared<GraphExec>(graph);
  const bool accessible = exec->all_of([&machine, device](const ferro::sim::Work& work) {
    return is_accessible(machine, work, device);
  });
  return accessible ? exec : nullptr;
}

CUresult instantiate(Machine& machine, CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  const Graph* graph = machine.find_graph(handle);
  if (graph == nullptr || out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<GraphExec> exec = make_exec(machine, *graph);
  if (exec == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  exec->flags = flags;
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  machine.execs().emplace(exec.get(), std::move(exec));
  return CUDA_SUCCESS;
}

CUresult launch(Machine& machine, CUgraphExec exec_handle, CUstream stream_handle) {
  machine.scheduler().prepare_submission();
  const auto exec = machine.find_exec(exec_handle);
  Stream* stream = machine.find_stream(stream_handle);
  if (exec == nullptr || stream == nullptr) {
    return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : machine.unknown_stream();
  }
  if (const CUresult result = refuse_implicit_dependency(machine, *stream)) {
    return result;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  exec->launch(machine.scheduler(), *stream);
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuGraphCreate(CUgraph* out, unsigned flags) {
  FERRO_SIM_CALL(0);
  if (out == nullptr || flags != 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  auto graph = std::make_shared<Graph>();
  *out = reinterpret_cast<CUgraph>(graph.get());
  call.machine().graphs().emplace(graph.get(), std::move(graph));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphClone(CUgraph* out, CUgraph original) {
  FERRO_SIM_CALL(0);
  const Graph* graph = call.machine().find_graph(original);
  if (out == nullptr || graph == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  std::shared_ptr<Graph> copy = graph->clone();
  *out = reinterpret_cast<CUgraph>(copy.get());
  call.machine().graphs().emplace(copy.get(), std::move(copy));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphDestroy(CUgraph handle) {
  FERRO_SIM_CALL(0);
  return call.finish(call.machine().graphs().erase(reinterpret_cast<Graph*>(handle)) > 0
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_INVALID_VALUE);
}

FERRO_SIM_API cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  FERRO_SIM_CALL(0);
  const Graph* graph = call.machine().find_graph(handle);
  if (graph == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  std::vector<GraphNode*> list;
  for (const auto& node : graph->nodes()) {
    list.push_back(node.get());
  }
  return call.finish(return_list(list, nodes, count));
}

FERRO_SIM_API cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  FERRO_SIM_CALL(0);
  const Graph* graph = call.machine().find_graph(handle);
  return call.finish(graph == nullptr ? CUDA_ERROR_INVALID_VALUE
                                      : return_list(graph->roots(), nodes, count));
}

FERRO_SIM_API cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                 CUgraphEdgeData* data, size_t* count) {
  FERRO_SIM_CALL(0);
  const Graph* graph = call.machine().find_graph(handle);
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  std::vector<GraphNode*> sources;
  std::vector<GraphNode*> targets;
  for (const auto& node : graph->nodes()) {
    for (GraphNode* earlier : node->before()) {
      sources.push_back(earlier);
      targets.push_back(node.get());
    }
  }
  size_t copied = *count;
  return_list(sources, from, count);
  if (data != nullptr) {
    std::fill_n(data, *count, CUgraphEdgeData{});
  }
  return call.finish(from == nullptr ? CUDA_SUCCESS : return_list(targets, to, &copied));
}

FERRO_SIM_API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = call.machine().find_node(handle);
  if (node == nullptr || type == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *type = node->type();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                            CUgraphEdgeData* data, size_t* count) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = call.machine().find_node(handle);
  if (node == nullptr || count == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (data != nullptr) {
    std::fill_n(data, std::min(*count, node->before().size()), CUgraphEdgeData{});
  }
  return call.finish(return_list(node->before(), nodes, count));
}

FERRO_SIM_API cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                              CUgraphEdgeData* data, size_t* count) {
  FERRO_SIM_CALL(0);
  const GraphNode* node = call.machine().find_node(handle);
  if (node == nullptr || count == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const auto list = dependents(*node);
  if (data != nullptr) {
    std::fill_n(data, std::min(*count, list.size()), CUgraphEdgeData{});
  }
  return call.finish(return_list(list, nodes, count));
}

FERRO_SIM_API cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                          unsigned long long flags) {
  FERRO_SIM_CALL(0);
  return call.finish(instantiate(call.machine(), out, graph, flags));
}

FERRO_SIM_API cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  FERRO_SIM_CALL(0);
  if (params == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const CUresult result = instantiate(call.machine(), out, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return call.finish(result);
}

FERRO_SIM_API cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  FERRO_SIM_CALL(0);
  const auto exec = call.machine().find_exec(handle);
  if (exec == nullptr || flags == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuGraphUpload(CUgraphExec exec, CUstream stream) {
  FERRO_SIM_CALL(0);
  return call.finish(call.machine().find_exec(exec) == nullptr       ? CUDA_ERROR_INVALID_VALUE
                     : call.machine().find_stream(stream) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                                     : CUDA_SUCCESS);
}

FERRO_SIM_API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(launch(call.machine(), exec, stream));
}

FERRO_SIM_API cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                                   CUgraphExecUpdateResultInfo* info) {
  FERRO_SIM_CALL(0);
  const auto exec = call.machine().find_exec(handle);
  const Graph* graph = call.machine().find_graph(graph_handle);
  if (exec == nullptr || graph == nullptr || info == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *info = {};
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  const std::shared_ptr<GraphExec> fresh = make_exec(call.machine(), *graph);
  if (fresh == nullptr) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (!exec->update(std::move(*fresh))) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return call.finish(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  }
  return CUDA_SUCCESS;
}

// Queued replays still run.
FERRO_SIM_API cuGraphExecDestroy(CUgraphExec handle) {
  FERRO_SIM_CALL(0);
  return call.finish(call.machine().execs().erase(reinterpret_cast<GraphExec*>(handle)) > 0
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_INVALID_VALUE);
}

FERRO_SIM_API cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
  FERRO_SIM_CALL(0);
  const Graph* graph = call.machine().find_graph(handle);
  if (graph == nullptr || path == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    return call.finish(CUDA_ERROR_OPERATING_SYSTEM);
  }
  std::fputs("digraph simulated {\n", file);
  for (const auto& node : graph->nodes()) {
    std::fprintf(file, "  n%p [label=\"type %d\"];\n", static_cast<const void*>(node.get()),
                 static_cast<int>(node->type()));
    for (const GraphNode* earlier : node->before()) {
      std::fprintf(file, "  n%p -> n%p;\n", static_cast<const void*>(earlier),
                   static_cast<const void*>(node.get()));
    }
  }
  std::fputs("}\n", file);
  std::fclose(file);
  return CUDA_SUCCESS;
}
