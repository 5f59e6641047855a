// Stream capture: streams that record instead of executing.
//
// Guarded by the machine's lock. A capture begins on an origin stream, spreads to streams that wait
// for its events, and ends on the origin. Invariant: a stream belongs to at most one capture, and
// to none once it has ended.
#pragma once

#include "sim/graphs/graph.h"

#include <cuda.h>

#include <memory>
#include <set>
#include <vector>

namespace ferro::sim {

class Capture {
 public:
  // Records into `graph`, which may have nodes.
  Capture(unsigned long long id, CUstreamCaptureMode mode, Stream& origin,
          std::shared_ptr<Graph> graph)
      : id_(id),
        mode_(mode),
        origin_(&origin),
        thread_(std::this_thread::get_id()),
        graph_(std::move(graph)) {
    exempt(graph_->leaves());
  }

  unsigned long long id() const { return id_; }
  CUstreamCaptureMode mode() const { return mode_; }
  bool owned_by_this_thread() const { return thread_ == std::this_thread::get_id(); }
  bool is_origin(const Stream& stream) const { return origin_ == &stream; }
  int device() const { return origin_->context->device; }
  // Whether the legacy default stream of this context would wait for a captured stream.
  bool has_blocking_stream(const Context& context) const;
  // Whether it records work of this context.
  bool has_stream_of(const Context& context) const;
  bool active() const { return active_; }
  bool ended() const { return ended_; }
  void invalidate() { active_ = false; }
  Graph& graph() { return *graph_; }
  // Whether the graph existed before and stays with its owner.
  bool records_to_existing_graph() const { return graph_.use_count() > 1; }

  // Adds a stream, whose next node depends on `front`.
  void join(const std::shared_ptr<Capture>& self, Stream& stream,
            std::span<GraphNode* const> front);
  // Removes a destroyed stream.
  void leave(Stream& stream);
  // Records work at the stream's front, which becomes the new node.
  GraphNode* record(Stream& stream, CUgraphNodeType type, Work work);
  // Exempts nodes from the join at the end: the caller removed them from a stream's front.
  void exempt(std::span<GraphNode* const> nodes) { exempted_.insert(nodes.begin(), nodes.end()); }
  // Releases all streams. The graph is null if the capture was invalid or work was not joined.
  CUresult end(std::shared_ptr<Graph>& graph);

 private:
  bool all_joined() const;

  const unsigned long long id_;
  const CUstreamCaptureMode mode_;
  const Stream* const origin_;
  const std::thread::id thread_;
  bool active_ = true;
  bool ended_ = false;
  std::set<Stream*> streams_;
  std::set<const GraphNode*> exempted_;
  std::shared_ptr<Graph> graph_;
};

}  // namespace ferro::sim
