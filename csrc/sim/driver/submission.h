// How a driver function hands work to a stream: recorded by a capture, or queued for execution.
#pragma once

#include "sim/driver/api_call.h"

#include <vector>

namespace ferro::sim {

// Refuses work on the legacy default stream while a blocking stream of its context is captured,
// which it would have to wait for; the captures become invalid.
CUresult refuse_implicit_dependency(Machine& machine, Stream& stream);

// Queues or records `work`. `node` receives the recorded node, null when nothing was recorded.
CUresult enqueue(Machine& machine, CUstream handle, CUgraphNodeType type, Work work,
                 GraphNode** node = nullptr);

// Copies as the driver does for host memory that is not page-locked: such a source is staged now,
// and such a destination makes the host wait.
CUresult enqueue_copy(Machine& machine, CUstream handle, Copy copy);

// See ferro_sim_on_read_back.
void set_read_back_observer(int (*is_result)(std::uint64_t address));

// Makes the host wait for all work that the stream has now.
void run_stream(Machine& machine, Stream& stream);

}  // namespace ferro::sim
