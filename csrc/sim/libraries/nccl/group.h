// Group calls, and how operations get onto their streams.
//
// A group belongs to a thread. Outside of one, each call is a group of its own.
#pragma once

#include "sim/libraries/nccl/transfer.h"

namespace ferro::sim::nccl {

void start_group();
// The first failure of what the group held. `drop`: nothing of it is done.
Failure end_group(bool drop = false);

// Numbers the operation, and runs it by the end of the thread's group.
Failure add(const std::shared_ptr<Communicator>& communicator, Transfer transfer);
// Does what waits for other ranks, by the end of the group and then beside the others of it.
Failure add(std::function<Failure()> meeting);

}  // namespace ferro::sim::nccl
