#include "ferro/core/streams/capture_order.h"

#include <algorithm>
#include <utility>

namespace ferro {

std::optional<CaptureFrontier> CaptureOrder::mark(const std::vector<StreamId>& streams) {
  CaptureFrontier mark{driver_.capture_frontier(stream_).capture, {}};
  if (mark.capture == 0) {
    return std::nullopt;
  }
  for (const StreamId stream : streams) {
    const CaptureFrontier theirs = driver_.capture_frontier(stream);
    if (theirs.capture != mark.capture) {
      return std::nullopt;
    }
    mark.nodes.insert(mark.nodes.end(), theirs.nodes.begin(), theirs.nodes.end());
  }
  return mark;
}

void CaptureOrder::scan() {
  CaptureFrontier frontier = driver_.capture_frontier(stream_);
  if (frontier.capture != capture_) {
    before_.clear();
    capture_ = frontier.capture;
  }
  // A node is inserted after all its predecessors, so that a failure loses none of them.
  std::vector<std::pair<GraphNodeId, bool>> open;  // true: its predecessors were visited
  for (const GraphNodeId node : frontier.nodes) {
    open.emplace_back(node, false);
  }
  while (!open.empty()) {
    auto& [node, expanded] = open.back();
    if (expanded || before_.contains(node)) {
      before_.insert(node);
      open.pop_back();
      continue;
    }
    expanded = true;
    for (const GraphNodeId earlier : driver_.nodes_before(node)) {
      if (!before_.contains(earlier)) {
        open.emplace_back(earlier, false);
      }
    }
  }
}

bool CaptureOrder::is_behind(const CaptureFrontier& mark) const {
  return mark.capture == capture_ && std::ranges::all_of(mark.nodes, [this](GraphNodeId node) {
           return before_.contains(node);
         });
}

bool CaptureOrder::is_behind_all() {
  scan();
  return capture_ != 0 && before_.size() == driver_.captured_nodes(stream_);
}

}  // namespace ferro
