// Captures: asking about them, and a scope that always ends the one that it began.
#pragma once

#include "ferro/driver/driver.h"
#include "ferro/graph/captured_graph.h"

#include <memory>

namespace ferro {

// Also of the legacy default stream while others capture, which the driver refuses to tell: it
// takes part in no capture. Throws DriverError.
CaptureStatus capture_status(Driver& driver, StreamId stream);

// Captures `stream` from its construction to `end()`. When it goes without that, or `end()` throws,
// the capture is ended, its graph discarded, and the stream usable. It says nothing about where
// memory comes from meanwhile: that is for diversions.h. For one thread, unless it is relaxed.
class CaptureGuard {
 public:
  // Null, and nothing has begun, when the pool is sealed; `pool` may be null. Throws DriverError.
  static std::unique_ptr<CaptureGuard> begin(Driver& driver, StreamId stream, CaptureMode mode,
                                             std::shared_ptr<CapturePool> pool);
  ~CaptureGuard();
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

  CaptureStatus status() { return capture_status(driver_, stream_); }
  StreamId stream() const { return stream_; }
  // Once. Throws DriverError when the capture is invalid; nothing captures any more then.
  std::unique_ptr<CapturedGraph> end();

 private:
  CaptureGuard(Driver& driver, StreamId stream, std::shared_ptr<CapturePool> pool)
      : driver_(driver), stream_(stream), pool_(std::move(pool)) {}

  Driver& driver_;
  const StreamId stream_;
  const std::shared_ptr<CapturePool> pool_;
  bool running_ = false;
};

}  // namespace ferro
