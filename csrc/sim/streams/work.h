// The work of operations, as plain values.
//
// Addresses are kept as numbers and looked up at execution: memory that is unmapped while work is
// queued becomes an illegal address, and the work accesses the pages that are mapped when it runs.
#pragma once

#include "sim/memory/contents.h"
#include "sim/memory/thread_counts.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace ferro::sim {

// Time of the virtual clock.
using Nanoseconds = std::int64_t;

// Has a place in the order and does nothing: event records and waits, joins.
struct Marker {};
// A point in the work of a context. It takes no time: it is done as soon as all its predecessors
// are.
struct Point {};

// Rows of `width` bytes; one row unless `height` says otherwise. Each side is a device address or a
// host address, which is decided when the copy is submitted: addresses that are released later do
// not become host memory. A staged source was copied out of pageable memory when the call was made.
struct Copy {
  std::uintptr_t to = 0;
  std::uintptr_t from = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  std::shared_ptr<std::vector<std::byte>> staged = nullptr;
  bool to_device = false;
  bool from_device = false;
  // Between two devices; the copying one needs no access to the other's memory.
  bool peers = false;
  // The host memory of the copy, if any, is not page-locked.
  bool pageable = false;
  // The submitting thread, which counts the copy if it is one to the host. None in graphs.
  std::shared_ptr<ferro_sim_thread_counts> thread = nullptr;
};

// Rows of `width` elements of `element` bytes (1, 2, 4 or 8).
struct Fill {
  std::uintptr_t to = 0;
  std::uint64_t value = 0;  // in its lowest bytes
  std::size_t element = 1;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t pitch = 0;
};

// Takes time, and does nothing except for writing a known constant.
struct Kernel {
  Nanoseconds duration = 0;
  std::optional<Fill> constant = std::nullopt;
};

struct HostCall {
  CUhostFn function = nullptr;
  void* argument = nullptr;
  // The function may wait for other host functions, of this process or another. Where work is
  // queued it gets its own thread; in clock time it takes no time.
  bool waits = false;
};

// A function of an observer of the program, called in stream order without a separate thread: see
// ferro_sim_in_order. Never part of a graph.
struct InOrder {
  void (*function)(void* argument) = nullptr;
  void* argument = nullptr;
};

// Bytes that a captured operator or kernel would have written.
struct UnknownBytes {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;  // from the first to the last; 0: all device memory
  ferro_sim_origin origin = {};
  std::size_t offset = 0;  // in the origin
  // Of each `pitch` bytes only the first ones, in an origin without gaps; 0: all bytes.
  std::size_t width = 0;
  std::size_t pitch = 0;
};

// Makes bytes unknown in a replay, without changing them. Takes no time. Follows the work of the node
// that stands for the operator.
struct Forget {
  std::shared_ptr<const std::vector<UnknownBytes>> ranges;
  std::uint64_t replay = 0;  // its number; other replays give other contents
};

struct AddressRange {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  bool operator==(const AddressRange&) const = default;
};

// What a kernel from outside of the program's operators reaches: see machine/outside_kernel.h.
struct KernelReach {
  std::vector<AddressRange> written;
  std::vector<AddressRange> read;
  bool everything = false;
  std::uint64_t identity = 0;  // of the kernel
};

// Makes what such a kernel may have written unknown. Takes no time. Never part of a graph.
struct ForgetReach {
  std::shared_ptr<const KernelReach> of;
};

// Releases memory that was freed in stream order.
struct FreeMemory {
  CUdeviceptr at = 0;
};

using Work = std::variant<Marker, Point, Kernel, Copy, Fill, HostCall, InOrder, Forget, ForgetReach,
                          FreeMemory>;

}  // namespace ferro::sim
