#include "ferro/core/streams/device_timeline.h"

#include <algorithm>

namespace ferro {

bool DeviceTimeline::record() {
  if (!has_points()) {
    return false;
  }
  const Driver::Session session(driver_);
  // Called before any lock of this class is taken, because it reads heaps.
  const std::vector<StreamId> streams = known(Known::kSome);
  return captures_.is_true_without_captures([&] { return record_point(streams); });
}

bool DeviceTimeline::record_point(const std::vector<StreamId>& known) {
  // Detects unannounced captures on the known streams.
  if (any_captures(known)) {
    return false;
  }
  const MutexLock lock(mutex_);
  // Frees from now on get a later stamp than the point, which is recorded after this increment. So
  // the point covers all work submitted before a free with an earlier stamp.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  const EventId event = events_.record_context();
  if (event == kNoEvent) {
    was_refused_.store(true, std::memory_order_relaxed);
    return false;
  }
  if (points_.size() >= kMaxPoints) {
    points_.pop_back();
  }
  points_.push_back({epoch, owned(event)});
  recorded_.store(epoch, std::memory_order_release);
  return true;
}

DeviceTimeline::Event DeviceTimeline::owned(EventId event) {
  return {new EventId(event), [&pool = events_](const EventId* last) {
            pool.put(*last);
            delete last;
          }};
}

bool DeviceTimeline::any_captures(const std::vector<StreamId>& streams) {
  return driver_.captures(kLegacyStream) ||
         std::ranges::any_of(streams, [this](StreamId stream) { return driver_.captures(stream); });
}

Epoch DeviceTimeline::update() {
  const MutexLock lock(mutex_);
  while (!points_.empty() && driver_.is_complete(*points_.front().event)) {
    note_passed(points_.front().epoch);
  }
  return passed();
}

void DeviceTimeline::note_passed(Epoch epoch) {
  passed_.store(std::max(epoch, passed()), std::memory_order_release);
  while (!points_.empty() && points_.front().epoch <= passed()) {
    points_.pop_front();
  }
}

std::optional<DeviceTimeline::Point> DeviceTimeline::point_behind(Epoch epoch) const {
  const auto point = std::ranges::lower_bound(points_, epoch, {}, &Point::epoch);
  return has_passed(epoch) || point == points_.end() ? std::nullopt : std::optional(*point);
}

bool DeviceTimeline::make_point_behind(Epoch epoch, std::optional<Point>& point) {
  if (epoch > recorded() && !record()) {
    return false;
  }
  const MutexLock lock(mutex_);
  point = point_behind(epoch);
  return true;
}

bool DeviceTimeline::wait(Epoch epoch) {
  const Driver::Session session(driver_);
  std::optional<Point> point;
  if (has_passed(epoch)) {
    return true;
  }
  if (!make_point_behind(epoch, point)) {
    if (has_points() || captures_.load() != 0) {
      return false;
    }
    wait_during_captures();
    return true;
  }
  if (point) {
    driver_.wait(*point->event);
    const MutexLock lock(mutex_);
    note_passed(point->epoch);
  }
  return true;
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
  return point && driver_.stream_wait(*point->event, stream);
}

void DeviceTimeline::join_streams(StreamId stream) {
  const Driver::Session session(driver_);
  const CaptureInfo own = driver_.capture_info(stream);
  if (own.status != CaptureStatus::kActive || own.id == 0) {
    return;
  }
  for (const StreamId other : known(Known::kAll)) {
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
