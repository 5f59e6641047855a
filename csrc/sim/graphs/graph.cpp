#include "sim/graphs/graph.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace ferro::sim {
namespace {

// The nodes, each after those that it depends on.
std::vector<const GraphNode*> in_order(const Graph& graph) {
  std::unordered_map<const GraphNode*, std::vector<const GraphNode*>> after;
  std::unordered_map<const GraphNode*, std::size_t> unfinished;
  std::vector<const GraphNode*> order;
  for (const auto& node : graph.nodes()) {
    unfinished[node.get()] = node->before().size();
    for (const GraphNode* earlier : node->before()) {
      after[earlier].push_back(node.get());
    }
    if (node->before().empty()) {
      order.push_back(node.get());
    }
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const GraphNode* later : after[order[i]]) {
      if (--unfinished[later] == 0) {
        order.push_back(later);
      }
    }
  }
  return order;
}

}  // namespace

KernelArguments::KernelArguments(const std::vector<std::size_t>& sizes, void* const* arguments) {
  constexpr std::size_t kAlignment = alignof(std::max_align_t);
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
  for (const std::size_t bytes : sizes) {
    offsets.push_back(total);
    total += align_up(bytes, kAlignment);
  }
  bytes_.resize(total);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::memcpy(bytes_.data() + offsets[i], arguments[i], sizes[i]);
    pointers_.push_back(bytes_.data() + offsets[i]);
  }
}

GraphNode* Graph::add(CUgraphNodeType type, Work work, std::vector<GraphNode*> before) {
  std::sort(before.begin(), before.end());
  before.erase(std::unique(before.begin(), before.end()), before.end());
  nodes_.push_back(std::make_unique<GraphNode>(*this, type, std::move(work), std::move(before)));
  known_.insert(nodes_.back().get());
  return nodes_.back().get();
}

bool Graph::find_all(const CUgraphNode* handles, std::size_t count,
                     std::vector<GraphNode*>& found) const {
  for (std::size_t i = 0; i < count; ++i) {
    found.push_back(reinterpret_cast<GraphNode*>(handles[i]));
    if (!contains(found.back())) {
      return false;
    }
  }
  return true;
}

std::vector<GraphNode*> Graph::roots() const {
  std::vector<GraphNode*> result;
  for (const auto& node : nodes_) {
    if (node->before().empty()) {
      result.push_back(node.get());
    }
  }
  return result;
}

std::vector<GraphNode*> Graph::leaves() const {
  std::vector<GraphNode*> inner;
  for (const auto& node : nodes_) {
    inner.insert(inner.end(), node->before().begin(), node->before().end());
  }
  std::sort(inner.begin(), inner.end());
  std::vector<GraphNode*> result;
  for (const auto& node : nodes_) {
    if (!std::binary_search(inner.begin(), inner.end(), node.get())) {
      result.push_back(node.get());
    }
  }
  return result;
}

Graph* Graph::find(const std::function<bool(const Graph&)>& is_wanted) {
  if (is_wanted(*this)) {
    return this;
  }
  for (const auto& node : nodes_) {
    Graph* found = node->child != nullptr ? node->child->find(is_wanted) : nullptr;
    if (found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const GraphNode* node : in_order(*this)) {
    std::vector<GraphNode*> before;
    for (const GraphNode* earlier : node->before()) {
      before.push_back(copies.at(earlier));
    }
    GraphNode* twin = copy->add(node->type(), node->work(), std::move(before));
    twin->event = node->event;
    twin->child = node->child;
    twin->body = node->body;
    twin->kernel = node->kernel;
    twin->arguments = node->arguments;
    twin->unknown = node->unknown;
    copies[node] = twin;
  }
  return copy;
}

std::vector<std::size_t> GraphExec::append(const Graph& graph,
                                           const std::vector<std::size_t>& entry) {
  // The steps after which a node is done: its own, or the last ones of a child graph.
  std::unordered_map<const GraphNode*, std::vector<std::size_t>> exits;
  for (const GraphNode* node : in_order(graph)) {
    std::vector<std::size_t> before;
    for (const GraphNode* earlier : node->before()) {
      const auto& steps = exits.at(earlier);
      before.insert(before.end(), steps.begin(), steps.end());
    }
    if (before.empty()) {
      before = entry;
    }
    if (node->type() == CU_GRAPH_NODE_TYPE_GRAPH && !node->child->nodes().empty()) {
      exits[node] = append(*node->child, before);
      continue;
    }
    for (const std::size_t step : before) {
      steps_[step].leaf = false;
    }
    exits[node] = {steps_.size()};
    steps_.push_back(
        {node->type(), node->work(), node->event, std::move(before), node->unknown, true});
  }
  std::vector<std::size_t> last;
  for (const GraphNode* node : graph.leaves()) {
    const auto& steps = exits.at(node);
    last.insert(last.end(), steps.begin(), steps.end());
  }
  return last;
}

bool GraphExec::all_of(const std::function<bool(const Work&)>& predicate) const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [&](const Step& step) { return predicate(step.work); });
}

void GraphExec::launch(Scheduler& scheduler, Stream& stream) {
  const int device = stream.context->device;
  ++launches_;
  if (scheduler.eager()) {
    for (Step& step : steps_) {
      scheduler.submit(step.work, device, {});
      if (step.unknown != nullptr) {
        scheduler.submit(Forget{step.unknown, launches_}, device, {});
      }
      if (step.event != nullptr && step.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        step.event->recorded = true;
        step.event->operation = nullptr;
        step.event->finished_at = scheduler.now();
      }
    }
    return;
  }
  submit(scheduler, stream, Marker{}, {&last_launch_, 1});
  const OperationPtr entry = stream.tail;
  std::vector<OperationPtr> operations;
  std::vector<OperationPtr> last{entry};
  operations.reserve(steps_.size());
  for (Step& step : steps_) {
    std::vector<OperationPtr> before;
    if (step.before.empty()) {
      before.push_back(entry);
    }
    for (const std::size_t earlier : step.before) {
      before.push_back(operations[earlier]);
    }
    if (step.event != nullptr && step.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
      before.push_back(step.event->operation);
    }
    operations.push_back(scheduler.submit(step.work, device, before));
    if (step.unknown != nullptr) {
      operations.back() =
          scheduler.submit(Forget{step.unknown, launches_}, device, {&operations.back(), 1});
    }
    if (step.event != nullptr && step.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      step.event->recorded = true;
      step.event->operation = operations.back();
    }
    if (step.leaf) {
      last.push_back(operations.back());
    }
  }
  submit(scheduler, stream, Marker{}, last);
  last_launch_ = stream.tail;
}

bool GraphExec::update(GraphExec&& other) {
  const auto same_shape = [](const Step& a, const Step& b) {
    return a.type == b.type && a.before == b.before && a.work.index() == b.work.index();
  };
  if (!std::equal(steps_.begin(), steps_.end(), other.steps_.begin(), other.steps_.end(),
                  same_shape)) {
    return false;
  }
  steps_ = std::move(other.steps_);
  return true;
}

}  // namespace ferro::sim
