#include "ferro/core/streams/device_timeline.h"

#include <algorithm>
#include <optional>

namespace ferro {

bool DeviceTimeline::record() {
  const Driver::Session session(driver_);
  // Looks at heaps, so it comes before any lock of this class.
  std::vector<StreamId> known;
  const bool is_first = recorded() == kUnused;
  if ((uses_known_streams() || is_first) && known_streams_) {
    known = known_streams_();
  }
  // No number was drawn before a capture that runs already.
  if (is_first && captures_.load() == 0 && any_captures(known)) {
    ledger_.note_silent_capture();
  }
  return captures_.is_true_without_captures([&] { return record_point(known); });
}

bool DeviceTimeline::record_point(const std::vector<StreamId>& known) {
  const bool by_streams = uses_known_streams();
  if (!by_streams && !ledger_.are_all_announced(driver_)) {
    return false;  // the next call knows the streams
  }
  const MutexLock lock(mutex_);
  // Frees from now on are stamped later than the point, which is recorded after this store. So what
  // was given before a free with an earlier stamp is behind the point.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  std::vector<EventId> recorded = by_streams ? record_on(known) : record_on_context();
  if (recorded.empty()) {
    return false;
  }
  if (points_.size() >= kMaxPoints) {
    // The new point covers what the last one did.
    put(points_.back().events);
    points_.pop_back();
  }
  points_.push_back({epoch, std::move(recorded)});
  recorded_.store(epoch, std::memory_order_release);
  return true;
}

void DeviceTimeline::put(const std::vector<EventId>& events) {
  for (const EventId event : events) {
    events_.put(event);
  }
}

std::vector<EventId> DeviceTimeline::record_on_context() {
  const EventId event = events_.take();
  bool is_recorded = false;
  try {
    is_recorded = driver_.record_context(event);
  } catch (...) {
    events_.put(event);
    throw;
  }
  if (!is_recorded) {
    ledger_.note_silent_capture();
    events_.put(event);
    return {};
  }
  return {event};
}

bool DeviceTimeline::any_captures(const std::vector<StreamId>& streams) {
  return driver_.captures(kLegacyStream) ||
         std::ranges::any_of(streams, [this](StreamId stream) { return driver_.captures(stream); });
}

// One event on each stream, and on the legacy stream, which comes behind all blocking ones. None
// when one of them captures: work that it was given before the capture could not be covered.
std::vector<EventId> DeviceTimeline::record_on(const std::vector<StreamId>& streams) {
  std::vector<EventId> recorded;
  try {
    if (any_captures(streams)) {
      return {};
    }
    recorded.push_back(events_.record(kLegacyStream));
    for (const StreamId stream : streams) {
      if (recorded.back() == kNoEvent) {
        break;
      }
      recorded.push_back(events_.record(stream));
    }
  } catch (...) {
    put(recorded);
    throw;
  }
  if (recorded.back() == kNoEvent) {
    recorded.pop_back();
    put(recorded);
    recorded.clear();
  }
  return recorded;
}

Epoch DeviceTimeline::update() {
  const MutexLock lock(mutex_);
  while (!points_.empty()) {
    Point& first = points_.front();
    while (!first.events.empty() && driver_.is_complete(first.events.back())) {
      events_.put(first.events.back());
      first.events.pop_back();
    }
    if (!first.events.empty()) {
      break;
    }
    passed_.store(first.epoch, std::memory_order_release);
    points_.pop_front();
  }
  return passed();
}

const DeviceTimeline::Point* DeviceTimeline::point_behind(Epoch epoch) const {
  const auto point = std::ranges::lower_bound(points_, epoch, {}, &Point::epoch);
  return point == points_.end() ? nullptr : &*point;
}

bool DeviceTimeline::make_point_behind(Epoch epoch) {
  // Twice: the first may find out that a library captures silently.
  return epoch <= recorded_.load(std::memory_order_acquire) || record() ||
         (uses_known_streams() && record());
}

bool DeviceTimeline::wait(Epoch epoch) {
  const Driver::Session session(driver_);
  while (!has_passed(epoch)) {
    if (!make_point_behind(epoch)) {
      return false;
    }
    std::optional<Point> point;
    {
      const MutexLock lock(mutex_);
      if (const Point* found = point_behind(epoch)) {
        point = *found;
      }
    }
    if (!point) {
      continue;  // it has passed
    }
    for (const EventId event : point->events) {
      driver_.wait(event);
    }
    note_passed(*point);
  }
  return true;
}

// Its events are over, unless another thread replaced the point meanwhile and reused them.
void DeviceTimeline::note_passed(const Point& point) {
  const MutexLock lock(mutex_);
  const Point* found = point_behind(point.epoch);
  if (found == nullptr || found->epoch != point.epoch || found->events != point.events) {
    return;
  }
  while (!points_.empty() && points_.front().epoch <= point.epoch) {
    put(points_.front().events);
    points_.pop_front();
  }
  passed_.store(point.epoch, std::memory_order_release);
}

bool DeviceTimeline::wait(Epoch epoch, std::chrono::milliseconds at_most) {
  const Driver::Session session(driver_);
  if (update() >= epoch) {
    return true;
  }
  if (!make_point_behind(epoch)) {
    return false;
  }
  std::optional<Point> point;
  {
    const MutexLock lock(mutex_);
    if (const Point* found = point_behind(epoch)) {
      point = *found;
    }
  }
  if (point && driver_.wait(point->events, at_most)) {
    note_passed(*point);
  }
  return has_passed(epoch);
}

bool DeviceTimeline::order_before(Epoch epoch, StreamId stream) {
  if (has_passed(epoch)) {
    return true;
  }
  const Driver::Session session(driver_);
  if (!make_point_behind(epoch)) {
    return false;
  }
  const MutexLock lock(mutex_);
  const Point* point = point_behind(epoch);
  return point == nullptr || std::ranges::all_of(point->events, [&](EventId event) {
           return driver_.stream_wait(event, stream);
         });
}

std::size_t DeviceTimeline::points() const {
  const MutexLock lock(mutex_);
  return points_.size();
}

}  // namespace ferro
