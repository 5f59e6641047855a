// Policy: does a request grow what the device holds, or does its stream wait for memory that other
// streams still use? Pure.
//
// Growing costs memory for good, waiting may cost time on the device: the stream idles until the
// others are done, unless it has as much to do itself. So the program may hold more than was ever
// live at one time, by a share for what is in flight, and beyond that requests wait.
#pragma once

#include <cstddef>

namespace ferro {

// Units: bytes of one device.
struct StreamWaitView {
  std::size_t request = 0;
  std::size_t pending = 0;    // that a stream wait would bring, in blocks or in whole free pages
  std::size_t held = 0;       // by the allocator
  std::size_t peak_live = 0;  // most that was live at one time
};

// `in_flight_share` is a share of `peak_live`; negative: always grow.
bool prefers_stream_wait(const StreamWaitView& view, double in_flight_share);

}  // namespace ferro
