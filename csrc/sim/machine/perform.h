// The effects of work on memory, and its access checks.
//
// Guarded by the machine's lock.
#pragma once

#include "sim/streams/work.h"

#include <cuda.h>

namespace ferro::sim {

class Machine;

// Performs all work except host calls, which need the lock released. An illegal address becomes the
// sticky error of the device's context.
void perform(Machine& machine, const Work& work, int device);

// Whether `device` may now access all device memory that the work touches.
bool is_accessible(const Machine& machine, const Work& work, int device);
// Whether the work may be queued or recorded now. A recorded fill is not checked.
CUresult validate(const Machine& machine, const Work& work, int device, bool recorded);

}  // namespace ferro::sim
