// Whether a stream captures.
#pragma once

#include "ferro/driver/driver.h"

namespace ferro {

// Also of the legacy default stream while others capture, which the driver refuses to tell: it
// takes part in no capture. Throws DriverError.
CaptureStatus capture_status(Driver& driver, StreamId stream);

}  // namespace ferro
