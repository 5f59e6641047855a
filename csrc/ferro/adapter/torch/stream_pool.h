// The streams that PyTorch has made on a device. They live as long as the process.
#pragma once

#include "ferro/driver/types.h"

#include <vector>

namespace ferro {

// Those of all priorities. The first call for a device makes them where PyTorch has not. Thread-safe.
std::vector<StreamId> streams_of_pytorch(DeviceId device);

}  // namespace ferro
