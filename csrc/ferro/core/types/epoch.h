// The stamp of a free: the number of the point that ends its epoch (streams/device_timeline.h).
#pragma once

#include <cstdint>

namespace ferro {

using Epoch = std::uint64_t;

// The stamp of memory that no work has ever used. It has always passed.
inline constexpr Epoch kUnused = 0;
// The stamp of memory that only one graph has used, during its capture, and no work of the device.
// It has always passed; within that capture the graph's own order decides.
inline constexpr Epoch kCaptured = 1;
inline constexpr Epoch kFirstEpoch = 2;

}  // namespace ferro
