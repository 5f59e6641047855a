// Group calls, and the submission of operations to their streams.
//
// A group belongs to a thread. Outside of one, each call is a group of its own.
#pragma once

#include "sim/libraries/nccl/transfer.h"

namespace ferro::sim::nccl {

void start_group();
// Runs the operations of the group and returns their first failure. `drop` discards them.
Failure end_group(bool drop = false);

// Numbers the operation, and submits it when the thread's group ends.
Failure add(const std::shared_ptr<Communicator>& communicator, Transfer transfer);
// Calls a function that waits for other ranks when the group ends, concurrently with the others of
// the group.
Failure add(std::function<Failure()> meeting);

}  // namespace ferro::sim::nccl
