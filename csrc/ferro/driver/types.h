// Strong types for the driver's objects. Below the adapter a device address is never a `void*` and
// a stream never a `cudaStream_t`.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {

using DeviceId = int;

// An address on the device. `kNull` is never a valid one.
enum class DevicePtr : std::uint64_t {};
inline constexpr DevicePtr kNull{0};

constexpr std::uint64_t address_of(DevicePtr ptr) { return static_cast<std::uint64_t>(ptr); }
constexpr DevicePtr operator+(DevicePtr ptr, std::size_t bytes) {
  return DevicePtr{address_of(ptr) + bytes};
}
// Distance in bytes; `to` is not below `from`.
constexpr std::size_t distance(DevicePtr from, DevicePtr to) {
  return address_of(to) - address_of(from);
}

// A CUstream as a number. 0 is the legacy default stream, a valid key on every device.
enum class StreamId : std::uint64_t {};
// Its work is ordered after earlier and before later work of all blocking streams of its device.
inline constexpr StreamId kLegacyStream{0};
// A handle of physical memory (CUmemGenericAllocationHandle). 0 is never a valid one.
enum class PageHandle : std::uint64_t {};
inline constexpr PageHandle kNoPage{0};

// A CUcontext as a number. It belongs to one device and owns the streams and events created in it.
enum class ContextId : std::uint64_t {};

// A CUevent as a number; 0 is none.
enum class EventId : std::uint64_t {};
inline constexpr EventId kNoEvent{0};

// A CUgraphNode as a number.
enum class GraphNodeId : std::uint64_t {};

// The result of a call that may run out of device memory.
enum class [[nodiscard]] Status{kOk, kOutOfMemory};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

// A stream stays in an invalidated capture until the program ends the capture.
enum class CaptureStatus : std::uint8_t { kNone, kActive, kInvalidated };
constexpr bool is_capturing(CaptureStatus status) { return status != CaptureStatus::kNone; }

// `id` distinguishes one capture of a stream from the next; 0 when none is active.
struct CaptureInfo {
  CaptureStatus status = CaptureStatus::kNone;
  std::uint64_t id = 0;
};

// The nodes on which the next work of a capturing stream depends directly. When no capture is
// active, `capture` is 0 and `nodes` is empty.
struct CaptureFrontier {
  std::uint64_t capture = 0;
  std::vector<GraphNodeId> nodes;
};

}  // namespace ferro
