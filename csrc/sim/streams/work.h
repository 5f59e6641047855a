// What an operation does when its turn comes, as plain values.
//
// Addresses are kept as numbers and looked up at execution: memory that is unmapped while work is
// queued is an illegal address, and pages exchanged behind an address are what the work finds.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace ferro::sim {

// Of the virtual clock.
using Nanoseconds = std::int64_t;

// Takes its place in the order and does nothing: event records and waits, joins.
struct Marker {};
// A moment in the work of a context: over with the last of what comes before it, in no time.
struct Point {};

// Rows of `width` bytes; one row unless `height` says otherwise. Each side is a device address or a
// host address, which is decided when the copy is submitted: addresses given back meanwhile do not
// become host memory. A staged source was copied out of pageable memory when the call was made.
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
  // Between two devices, of which the one that copies need not have access to the other's memory.
  bool peers = false;
  // The host's side, if there is one, is not page-locked.
  bool pageable = false;
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

// Takes time, and does nothing but for a constant that it writes, where that is known.
struct Kernel {
  Nanoseconds duration = 0;
  std::optional<Fill> constant = std::nullopt;
};

struct HostCall {
  CUhostFn function = nullptr;
  void* argument = nullptr;
  // Its end may need other host functions to end, of this process or another: it gets a thread of
  // its own where work is queued, and no time in clock time.
  bool waits = false;
};

// What somebody who watches the program does in its order, on no thread of its own: see
// ferro_sim_in_order. Never part of a graph.
struct InOrder {
  void (*function)(void* argument) = nullptr;
  void* argument = nullptr;
};

// The end of memory freed in stream order.
struct FreeMemory {
  CUdeviceptr at = 0;
};

using Work = std::variant<Marker, Point, Kernel, Copy, Fill, HostCall, InOrder, FreeMemory>;

}  // namespace ferro::sim
