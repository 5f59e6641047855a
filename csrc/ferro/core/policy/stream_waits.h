// Policy: whether a request grows held memory or waits for memory of other streams. Pure.
//
// Growing costs memory permanently. Waiting may cost device time: the stream idles until the other
// streams finish, unless it has enough work itself. So held memory may exceed the peak of live
// memory by a share for memory in flight; beyond that, requests wait.
#pragma once

#include <cstddef>

namespace ferro {

// Units: bytes of one device.
struct StreamWaitView {
  std::size_t request = 0;
  std::size_t pending = 0;    // that a stream wait would provide, in blocks or whole free pages
  std::size_t held = 0;       // by the allocator
  std::size_t peak_live = 0;  // the most that was live at one time
};

// `in_flight_share` is a share of `peak_live`; negative: always grow.
constexpr bool prefers_stream_wait(const StreamWaitView& view, double in_flight_share) {
  if (in_flight_share < 0 || view.pending < view.request) {
    return false;
  }
  const double allowed = static_cast<double>(view.peak_live) * (1 + in_flight_share);
  return static_cast<double>(view.held + view.request) > allowed;
}

}  // namespace ferro
