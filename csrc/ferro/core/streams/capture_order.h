// The order of a graph during its capture: which work precedes a stream's next work.
//
// The heap's lock guards it. A node that precedes the next work always will, because the captured
// work of a stream only grows; so each node is visited once per capture.
#pragma once

#include "ferro/driver/driver.h"

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

namespace ferro {

class CaptureOrder {
 public:
  CaptureOrder(Driver& driver, StreamId stream) : driver_(driver), stream_(stream) {}

  // The last work of `streams` so far in this stream's capture. None if this stream is in no
  // capture, or one of them is not in the same capture. Throws DriverError.
  std::optional<CaptureFrontier> mark(const std::vector<StreamId>& streams);
  // Visits the work captured since the last scan. Throws DriverError; the next scan then continues.
  void scan();
  // Whether all work at the mark precedes this stream's next work, as of the last scan.
  bool is_behind(const CaptureFrontier& mark) const;
  // Whether all work in the stream's capture, on any stream, precedes this stream's next work.
  // Scans first. Throws DriverError.
  bool is_behind_all();

 private:
  Driver& driver_;
  const StreamId stream_;
  std::uint64_t capture_ = 0;
  std::unordered_set<GraphNodeId> before_;
};

}  // namespace ferro
