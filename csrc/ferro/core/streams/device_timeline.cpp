#include "ferro/core/streams/device_timeline.h"

#include <algorithm>
#include <array>

namespace ferro {

bool DeviceTimeline::record() {
  if (!has_points()) {
    return false;
  }
  const Driver::Session session(driver_);
  // Called before any lock of this class is taken, because it reads heaps.
  std::array<StreamId, kMaxQueried> buffer;
  const std::size_t count = known_streams_ ? known_streams_(buffer) : 0;
  const std::span<const StreamId> streams = std::span(buffer).first(count);
  return captures_.is_true_without_captures([&] { return record_point(streams); });
}

bool DeviceTimeline::record_point(std::span<const StreamId> known) {
  // Detects unannounced captures on the known streams.
  if (any_captures(known)) {
    return false;
  }
  const MutexLock lock(mutex_);
  // Frees from now on get a later stamp than the point, which is recorded after this increment. So
  // the point covers all work submitted before a free with an earlier stamp.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that waits may still need the event of a point that has passed.
  if (unused_.empty() || waiting_ != 0) {
    unused_.push_back(events_.take());
  }
  const EventId event = unused_.back();
  if (!driver_.record_context(event)) {
    was_refused_.store(true, std::memory_order_relaxed);
    return false;
  }
  unused_.pop_back();
  if (points_.size() >= kMaxPoints) {
    unused_.push_back(points_.back().event);
    points_.pop_back();
  }
  points_.push_back({epoch, event});
  recorded_.store(epoch, std::memory_order_release);
  return true;
}

bool DeviceTimeline::any_captures(std::span<const StreamId> streams) {
  return driver_.captures(kLegacyStream) ||
         std::ranges::any_of(streams, [this](StreamId stream) { return driver_.captures(stream); });
}

Epoch DeviceTimeline::update() {
  const MutexLock lock(mutex_);
  while (!points_.empty() && driver_.is_complete(points_.front().event)) {
    note_passed(points_.front().epoch);
  }
  return passed();
}

void DeviceTimeline::note_passed(Epoch epoch) {
  passed_.store(std::max(epoch, passed()), std::memory_order_release);
  while (!points_.empty() && points_.front().epoch <= passed()) {
    unused_.push_back(points_.front().event);
    points_.pop_front();
  }
}

std::optional<DeviceTimeline::Point> DeviceTimeline::point_behind(Epoch epoch) const {
  const auto point = std::ranges::lower_bound(points_, epoch, {}, &Point::epoch);
  return has_passed(epoch) || point == points_.end() ? std::nullopt : std::optional(*point);
}

bool DeviceTimeline::wait(Epoch epoch) {
  const Driver::Session session(driver_);
  if (has_passed(epoch)) {
    return true;
  }
  if (epoch > recorded() && !record()) {
    if (has_points() || captures_.load() != 0) {
      return false;
    }
    wait_during_captures();
    return true;
  }
  std::optional<Point> point;
  {
    const MutexLock lock(mutex_);
    point = point_behind(epoch);
    waiting_ += point ? 1 : 0;
  }
  if (point) {
    wait_for(*point);
  }
  return true;
}

// The caller has counted itself in `waiting_`.
void DeviceTimeline::wait_for(const Point& point) {
  try {
    driver_.wait(point.event);
  } catch (...) {
    const MutexLock lock(mutex_);
    --waiting_;
    throw;
  }
  const MutexLock lock(mutex_);
  --waiting_;
  note_passed(point.epoch);
}

void DeviceTimeline::wait_during_captures() {
  // Later frees get a later stamp, so the wait covers all work before the frees of this epoch.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  driver_.wait_for_device();
  const MutexLock lock(mutex_);
  recorded_.store(std::max(epoch, recorded()), std::memory_order_release);
  note_passed(epoch);
}

bool DeviceTimeline::order_before(Epoch epoch, StreamId stream) {
  const MutexLock lock(mutex_);
  if (has_passed(epoch)) {
    return true;
  }
  const std::optional<Point> point = point_behind(epoch);
  return point && driver_.stream_wait(point->event, stream);
}

void DeviceTimeline::join_streams(StreamId stream, const std::vector<StreamId>& others) {
  const Driver::Session session(driver_);
  const CaptureInfo own = driver_.capture_info(stream);
  if (own.status != CaptureStatus::kActive || own.id == 0) {
    return;
  }
  for (const StreamId other : others) {
    if (other != stream && driver_.capture_info(other).id == own.id) {
      const EventId event = events_.take();
      try {
        driver_.join_in_capture(event, other, stream);
      } catch (...) {
        events_.put(event);
        throw;
      }
      events_.put(event);
    }
  }
}

std::size_t DeviceTimeline::points() const {
  const MutexLock lock(mutex_);
  return points_.size();
}

}  // namespace ferro
