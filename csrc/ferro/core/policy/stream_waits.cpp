#include "ferro/core/policy/stream_waits.h"

namespace ferro {

bool prefers_stream_wait(const StreamWaitView& view, double in_flight_share) {
  if (in_flight_share < 0 || view.pending < view.request) {
    return false;
  }
  const double allowed = static_cast<double>(view.peak_live) * (1 + in_flight_share);
  return static_cast<double>(view.held + view.request) > allowed;
}

}  // namespace ferro
