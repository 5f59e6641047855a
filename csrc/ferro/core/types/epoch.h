// The stamp of a free: which point of the device's work came next (streams/device_timeline.h).
#pragma once

#include <cstdint>

namespace ferro {

using Epoch = std::uint64_t;

// The stamp of memory that no work has ever used. It has always passed.
inline constexpr Epoch kUnused = 0;

}  // namespace ferro
