// The driver calls that are counted, for statistics and tests.
#pragma once

#include <cstddef>
#include <cstdint>

// One row per kind: its constant, and its name as a member, in status() and in reports.
// clang-format off
#define FERRO_DRIVER_CALLS(X)    \
  X(kReserve, reserve)           \
  X(kUnreserve, unreserve)       \
  X(kCreate, create)             \
  X(kRelease, release)           \
  X(kMap, map)                   \
  X(kSetAccess, set_access)      \
  X(kUnmap, unmap)               \
  X(kEventRecord, event_record)  \
  X(kEventQuery, event_query)    \
  X(kEventWait, event_wait)      \
  X(kStreamWait, stream_wait)    \
  X(kExport, exported)           \
  X(kImport, imported)           \
  X(kCopy, copy)
// clang-format on

namespace ferro {

enum class DriverCall : std::uint8_t {
#define FERRO_DRIVER_CALL_CONSTANT(constant, name) constant,
  FERRO_DRIVER_CALLS(FERRO_DRIVER_CALL_CONSTANT)
#undef FERRO_DRIVER_CALL_CONSTANT
};

// The number of calls of each kind.
struct DriverCalls {
#define FERRO_DRIVER_CALL_MEMBER(constant, name) std::uint64_t name = 0;
  FERRO_DRIVER_CALLS(FERRO_DRIVER_CALL_MEMBER)
#undef FERRO_DRIVER_CALL_MEMBER
};

inline constexpr std::size_t kDriverCallKinds = sizeof(DriverCalls) / sizeof(std::uint64_t);

// Calls `visit(name, count)` for each kind, in the order above.
template <typename Visit>
void for_each_kind(const DriverCalls& calls, Visit visit) {
#define FERRO_DRIVER_CALL_VISIT(constant, name) visit(#name, calls.name);
  FERRO_DRIVER_CALLS(FERRO_DRIVER_CALL_VISIT)
#undef FERRO_DRIVER_CALL_VISIT
}

}  // namespace ferro
