// Work meets the machine: what it does to memory, and what of it is allowed.
//
// Guarded by the machine's lock.
#pragma once

#include "sim/streams/work.h"

#include <cuda.h>

namespace ferro::sim {

class Machine;

// Does everything but host calls, which need the lock released. An illegal address becomes the
// sticky error of the device's context.
void perform(Machine& machine, const Work& work, int device);

// May `device` access all device memory that the work touches, as things are now?
bool is_accessible(const Machine& machine, const Work& work, int device);
// May the work be queued now, or recorded? A recorded fill is not looked at.
CUresult validate(const Machine& machine, const Work& work, int device, bool recorded);

}  // namespace ferro::sim
