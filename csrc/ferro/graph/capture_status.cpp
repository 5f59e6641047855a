#include "ferro/graph/capture_status.h"

namespace ferro {

CaptureStatus capture_status(Driver& driver, StreamId stream) {
  const CaptureInfo info = driver.capture_info(stream);
  // Active without an id: the driver's answer is about other streams.
  return info.status == CaptureStatus::kActive && info.id == 0 ? CaptureStatus::kNone : info.status;
}

}  // namespace ferro
