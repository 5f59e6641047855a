// Graphs of work: what a capture records, and what an instantiated graph replays.
//
// Guarded by the machine's lock. Invariant: edges never form a cycle, because a node's
// dependencies exist before it.
#pragma once

#include "sim/streams/context.h"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace ferro::sim {

class Graph;

// The arguments of a kernel launch, copied when it was recorded.
class KernelArguments {
 public:
  // `sizes`: bytes of each of `arguments`.
  KernelArguments(const std::vector<std::size_t>& sizes, void* const* arguments);
  KernelArguments(const KernelArguments&) = delete;
  KernelArguments& operator=(const KernelArguments&) = delete;

  // One pointer for each argument, as launches take them.
  void** pointers() { return pointers_.data(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<void*> pointers_;
};

class GraphNode {
 public:
  GraphNode(Graph& graph, CUgraphNodeType type, Work work, std::vector<GraphNode*> before)
      : graph_(graph), type_(type), work_(std::move(work)), before_(std::move(before)) {}

  Graph& graph() const { return graph_; }
  CUgraphNodeType type() const { return type_; }
  const Work& work() const { return work_; }
  const std::vector<GraphNode*>& before() const { return before_; }
  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }

  // Of event nodes.
  std::shared_ptr<Event> event;
  // Of child graph nodes, and the body of conditional nodes.
  std::shared_ptr<Graph> child;
  // Of conditional nodes: the handle of `child`, which their creator reads here.
  CUgraph body = nullptr;
  CUDA_KERNEL_NODE_PARAMS kernel{};
  // What becomes unknown after its work; null for none.
  std::shared_ptr<std::vector<UnknownBytes>> unknown;
  std::shared_ptr<KernelArguments> arguments;  // those of `kernel`; null where they are not known

 private:
  friend class Graph;
  Graph& graph_;
  const CUgraphNodeType type_;
  const Work work_;
  std::vector<GraphNode*> before_;
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  using Nodes = std::vector<std::unique_ptr<GraphNode>>;

  GraphNode* add(CUgraphNodeType type, Work work, std::vector<GraphNode*> before);
  bool contains(const GraphNode* node) const { return known_.contains(node); }
  // Appends the nodes with these handles; false if one of them is not of this graph.
  bool find_all(const CUgraphNode* handles, std::size_t count,
                std::vector<GraphNode*>& found) const;
  const Nodes& nodes() const { return nodes_; }
  std::vector<GraphNode*> roots() const;
  // Nodes that nothing depends on.
  std::vector<GraphNode*> leaves() const;
  // The first wanted graph among this one and those within its nodes, at any depth; or null.
  Graph* find(const std::function<bool(const Graph&)>& is_wanted);
  std::unique_ptr<Graph> clone() const;

 private:
  Nodes nodes_;
  std::unordered_set<const GraphNode*> known_;
};

// A graph ready to launch: nodes in an order that its edges allow, child graphs spliced in. Bodies of
// conditional nodes never run: a kernel sets the condition, and kernels compute nothing.
class GraphExec {
 public:
  explicit GraphExec(const Graph& graph) { append(graph, {}); }

  // Does the predicate hold for the work of every step?
  bool all_of(const std::function<bool(const Work&)>& predicate) const;

  // Queues one replay: after the stream's earlier work and after this object's previous replay.
  void launch(Scheduler& scheduler, Stream& stream);
  // Takes over another graph's work; false when the two differ in shape.
  bool update(GraphExec&& other);

  unsigned long long flags = 0;

 private:
  struct Step {
    CUgraphNodeType type;
    Work work;
    std::shared_ptr<Event> event;
    std::vector<std::size_t> before;  // earlier steps
    std::shared_ptr<const std::vector<UnknownBytes>> unknown;
    bool leaf = true;
  };
  // Appends a graph's nodes; roots come after `entry`. Returns the steps that end it.
  std::vector<std::size_t> append(const Graph& graph, const std::vector<std::size_t>& entry);

  std::vector<Step> steps_;
  OperationPtr last_launch_;
  std::uint64_t launches_ = 0;
};

}  // namespace ferro::sim
