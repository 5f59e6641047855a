// What a graph's own order says while it is captured: which work comes before a stream's next work.
//
// Belongs to its heap's lock. A node that came before stays before, because the captured work of a
// stream is only ever added to; so each node is looked at once in a capture.
#pragma once

#include "ferro/driver/driver.h"

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

namespace ferro {

// The last work of some streams in one capture, at one moment.
struct CaptureMark {
  std::uint64_t capture = 0;
  std::vector<GraphNodeId> nodes;
};

class CaptureOrder {
 public:
  CaptureOrder(Driver& driver, StreamId stream) : driver_(driver), stream_(stream) {}

  // The mark of what `streams` have done so far in the capture that this stream is in. None when
  // this stream or one of them is in no capture, or in another. Throws DriverError.
  std::optional<CaptureMark> mark(const std::vector<StreamId>& streams);
  // Looks at what was captured since the last scan. Throws DriverError; then the next scan goes on.
  void scan();
  // Does all work at the mark come before this stream's next work, as of the last scan?
  bool is_behind(const CaptureMark& mark) const;
  // Does all work in the stream's capture, on any stream, come before this stream's next work? Scans
  // first. Throws DriverError.
  bool is_behind_all();

 private:
  Driver& driver_;
  const StreamId stream_;
  std::uint64_t capture_ = 0;
  std::unordered_set<GraphNodeId> before_;
};

}  // namespace ferro
