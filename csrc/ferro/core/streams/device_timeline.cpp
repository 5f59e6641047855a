#include "ferro/core/streams/device_timeline.h"

#include <algorithm>

namespace ferro {

bool DeviceTimeline::record() {
  const Driver::Session session(driver_);
  // Looks at heaps, so it comes before any lock of this class.
  const std::vector<StreamId> streams = known(uses_known_streams() ? Known::kAll : Known::kSome);
  return captures_.is_true_without_captures([&] { return record_point(streams); });
}

bool DeviceTimeline::record_point(const std::vector<StreamId>& known) {
  // Of captures that are not announced those on known streams can be seen.
  if (any_captures(known)) {
    return false;
  }
  const bool of_context = !uses_known_streams();
  const MutexLock lock(mutex_);
  // Frees from now on are stamped later than the point, which is recorded after this store. So what
  // was given before a free with an earlier stamp is behind the point.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  EventList recorded = of_context ? record_on_context() : record_on(known);
  if (recorded.empty()) {
    return false;
  }
  add(epoch, std::move(recorded), of_context);
  recorded_.store(epoch, std::memory_order_release);
  return true;
}

void DeviceTimeline::add(Epoch epoch, EventList recorded, bool of_context) {
  Events earlier;
  if (points_.size() >= kMaxPoints) {
    // A point covers what the last one did, but for one of streams after one of the context.
    earlier = points_.back().of_context != of_context ? points_.back().events : nullptr;
    points_.pop_back();
  }
  points_.push_back({epoch, owned(std::move(recorded), std::move(earlier)), of_context});
}

// `earlier` are over with these, and go back with them.
DeviceTimeline::Events DeviceTimeline::owned(EventList events, Events earlier) {
  const std::size_t own = events.size();
  if (earlier != nullptr) {
    events.insert(events.end(), earlier->begin(), earlier->end());
  }
  return {new EventList(std::move(events)),
          [&pool = events_, own, earlier = std::move(earlier)](const EventList* all) {
            for (std::size_t i = 0; i < own; ++i) {
              pool.put((*all)[i]);
            }
            delete all;
          }};
}

DeviceTimeline::EventList DeviceTimeline::record_on_context() {
  const EventId event = events_.record_context();
  if (event == kNoEvent) {
    by_streams_.store(true, std::memory_order_relaxed);
    return {};
  }
  return {event};
}

bool DeviceTimeline::any_captures(const std::vector<StreamId>& streams) {
  return driver_.captures(kLegacyStream) ||
         std::ranges::any_of(streams, [this](StreamId stream) { return driver_.captures(stream); });
}

// One event on each stream, and on the legacy stream, which comes behind all blocking ones. None when
// one of them has begun to capture.
DeviceTimeline::EventList DeviceTimeline::record_on(const std::vector<StreamId>& streams) {
  EventList recorded;
  const auto put = [&] {
    for (const EventId event : recorded) {
      events_.put(event);
    }
    recorded.clear();
  };
  try {
    recorded.push_back(events_.record(kLegacyStream));
    for (const StreamId stream : streams) {
      if (recorded.back() == kNoEvent) {
        break;
      }
      recorded.push_back(events_.record(stream));
    }
  } catch (...) {
    put();
    throw;
  }
  if (recorded.back() == kNoEvent) {
    recorded.pop_back();
    put();
  }
  return recorded;
}

Epoch DeviceTimeline::update() {
  const MutexLock lock(mutex_);
  while (!points_.empty() && std::ranges::all_of(*points_.front().events, [this](EventId event) {
    return driver_.is_complete(event);
  })) {
    remove_first_point();
  }
  return passed();
}

void DeviceTimeline::remove_first_point() {
  passed_.store(points_.front().epoch, std::memory_order_release);
  points_.pop_front();
}

const DeviceTimeline::Point* DeviceTimeline::point_behind(Epoch epoch) const {
  const auto point = std::ranges::lower_bound(points_, epoch, {}, &Point::epoch);
  return point == points_.end() ? nullptr : &*point;
}

bool DeviceTimeline::make_point_behind(Epoch epoch) {
  // Twice: the first may find out that a library captures silently.
  return epoch <= recorded() || record() || (uses_known_streams() && record());
}

DeviceTimeline::Point DeviceTimeline::first_point() const {
  const MutexLock lock(mutex_);
  return points_.empty() ? Point{} : points_.front();
}

// One point after the other: a later one need not cover what an earlier one does, where they are not
// of the same kind.
bool DeviceTimeline::wait(Epoch epoch) {
  const Driver::Session session(driver_);
  while (!has_passed(epoch)) {
    if (!make_point_behind(epoch)) {
      return false;
    }
    const Point point = first_point();
    if (point.events == nullptr) {
      continue;  // it has passed
    }
    for (const EventId event : *point.events) {
      driver_.wait(event);
    }
    note_passed(point);
  }
  return true;
}

// All its events are over. It is the first point, unless another thread has noted that already.
void DeviceTimeline::note_passed(const Point& point) {
  const MutexLock lock(mutex_);
  if (!points_.empty() && points_.front().events == point.events) {
    remove_first_point();
  }
}

bool DeviceTimeline::order_before(Epoch epoch, StreamId stream) {
  const MutexLock lock(mutex_);
  if (has_passed(epoch)) {
    return true;
  }
  if (epoch > recorded()) {
    return false;
  }
  // Those before it too, where it does not cover them.
  const Point* last = point_behind(epoch);
  for (const Point& point : points_) {
    const bool is_covered = &point != last && point.of_context == last->of_context;
    if (!is_covered && !std::ranges::all_of(*point.events, [&](EventId event) {
          return driver_.stream_wait(event, stream);
        })) {
      return false;
    }
    if (&point == last) {
      break;
    }
  }
  return true;
}

std::optional<Epoch> DeviceTimeline::order_behind_streams(StreamId stream) {
  const Driver::Session session(driver_);
  if (captures_.load() == 0 || !is_capture_covered_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  const std::vector<StreamId> streams = known(Known::kAll);
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  if (!order_before(recorded(), stream)) {
    return std::nullopt;
  }
  // The stream on which the capture began did nothing since the point before it. One that joined the
  // capture later may have.
  int capturing = 0;
  for (const StreamId other : streams) {
    if (other == stream) {
      continue;
    }
    // A record on the legacy stream would end captures of blocking streams.
    const EventId event = driver_.captures(other) ? kNoEvent : events_.record(other);
    if (event == kNoEvent) {
      if (is_legacy(other) || ++capturing > 1) {
        return std::nullopt;
      }
      continue;
    }
    const bool waits = driver_.stream_wait(event, stream);
    events_.put(event);
    if (!waits) {
      return std::nullopt;
    }
  }
  return epoch;
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
