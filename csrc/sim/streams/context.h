// Contexts, streams and events.
//
// Guarded by the machine's lock. The driver's opaque handles are the addresses of these objects.
#pragma once

#include "sim/streams/scheduler.h"

#include <cuda.h>

#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

class Capture;
class GraphNode;
struct Context;

struct Stream {
  Context* context = nullptr;
  unsigned long long id = 0;
  unsigned flags = CU_STREAM_DEFAULT;
  int priority = 0;
  // The last submitted operation, which runs after all earlier ones of this stream.
  OperationPtr tail;
  // Set while the stream is part of a capture.
  std::shared_ptr<Capture> capture;
  // The dependencies of the next captured node.
  std::vector<GraphNode*> capture_front;
  // The array that the last query of the capture returned.
  std::vector<CUgraphEdgeData> capture_edges;

  // Whether the legacy default stream synchronises with this one.
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = CU_EVENT_DEFAULT;
  bool recorded = false;
  // Exported or imported: the host waits for every record.
  bool exported = false;
  // The record that waits and queries refer to; null once it is known to be done.
  OperationPtr operation;
  std::uint64_t queries = 0;  // of this record
  Clock::time_point finished_at;
  // Set when the last record was captured.
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_front;

  bool complete() {
    if (operation != nullptr && operation->done()) {
      finished_at = operation->finished_at();
      operation = nullptr;
    }
    return operation == nullptr;
  }
};

struct Context {
  int device = 0;
  unsigned flags = CU_CTX_SCHED_AUTO;
  unsigned references = 0;
  // The first error of the device that no call can clear.
  CUresult sticky_error = CUDA_SUCCESS;
  Stream legacy;
  std::unordered_map<Stream*, std::unique_ptr<Stream>> streams;
  std::unordered_map<std::thread::id, std::unique_ptr<Stream>> per_thread;
  std::unordered_map<Event*, std::shared_ptr<Event>> events;
  // Last operations of destroyed streams: blocking ones, which the legacy stream waits for, and the
  // others.
  std::vector<OperationPtr> orphans;
  std::vector<OperationPtr> non_blocking_orphans;
  std::set<int> peers;

  bool active() const { return references > 0; }
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

// Queues work with all dependencies that CUDA defines. The stream is not capturing.
void submit(Scheduler& scheduler, Stream& stream, Work work,
            std::span<const OperationPtr> also_after = {});
// Makes later work of the stream wait for `operation`.
void wait_for(Scheduler& scheduler, Stream& stream, const OperationPtr& operation);
// Submits an operation outside of all streams, after all work that the streams of the context have
// now.
OperationPtr submit_context_point(Scheduler& scheduler, Context& context);
// The operations that must be done before the stream is idle.
std::vector<OperationPtr> tails_of(Stream& stream);

}  // namespace ferro::sim
