#include "ferro/core/streams/device_timeline.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace ferro {

namespace {

// The result of a call about another device's context, or `if_lost` if an error has ended that
// context: then none of its work uses memory any more, and under the native allocator this device
// goes on.
template <typename Call>
bool of_other(bool if_lost, Call call) {
  try {
    return call();
  } catch (const DriverError& error) {
    if (!error.ends_context()) {
      throw;
    }
    return if_lost;
  }
}

}  // namespace

void DeviceTimeline::find_contexts() {
  if (!without_context_) {
    without_context_ = driver_.other_devices();
  }
  for (auto device = without_context_->begin(); device != without_context_->end();) {
    ContextId context{};
    const bool is_found = of_other(false, [&] {
      const bool has_context = driver_.has_primary_context(*device);
      if (has_context) {
        context = driver_.primary_context(*device);
      }
      return has_context;
    });
    if (is_found) {
      others_.push_back(context);
      device = without_context_->erase(device);
    } else {
      ++device;
    }
  }
}

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
  const MutexLock lock(mutex_);
  // Frees from now on get a later stamp than the point, which is recorded after this increment. So
  // the point covers all work submitted before a free with an earlier stamp. A context that does
  // not exist yet has no such work.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  find_contexts();
  // Detects unannounced captures on the known streams. A later point covers the epoch.
  if (any_captures(known)) {
    return false;
  }
  // A thread that waits may still need the event of a point that has passed.
  if (unused_.empty() || waiting_ != 0) {
    unused_.emplace_back();
  }
  Events& events = unused_.back();
  for (std::size_t i = 0; i <= others_.size(); ++i) {
    const ContextId context = i == 0 ? driver_.own_context() : others_[i - 1];
    if (i == events.size()) {
      events.push_back(events_.take(context));
    }
    const auto record = [&] { return driver_.record_context(events[i], context); };
    if (!(i == 0 ? record() : of_other(true, record))) {
      captures_.note_refusal();
      return false;
    }
  }
  Point point{epoch, std::move(events)};
  unused_.pop_back();
  if (points_.size() >= kMaxPoints) {
    unused_.push_back(std::move(points_.back().events));
    points_.pop_back();
  }
  points_.push_back(std::move(point));
  recorded_.store(epoch, std::memory_order_release);
  note_orderable();
  return true;
}

bool DeviceTimeline::any_captures(std::span<const StreamId> known) {
  return driver_.captures(kLegacyStream) ||
         std::ranges::any_of(
             known,
             [this](StreamId s) { return of_other(false, [&] { return driver_.captures(s); }); }) ||
         std::ranges::any_of(others_, [this](ContextId other) {
           return of_other(false, [&] { return driver_.captures(kLegacyStream, other); });
         });
}

Epoch DeviceTimeline::update() {
  const MutexLock lock(mutex_);
  note_orderable();
  while (!points_.empty() && points_.front().epoch <= last_orderable() &&
         driver_.is_complete(points_.front().events.front())) {
    note_passed(points_.front().epoch);
  }
  return passed();
}

// Queries only events of other devices.
void DeviceTimeline::note_orderable() {
  for (auto point = std::ranges::upper_bound(points_, last_orderable(), {}, &Point::epoch);
       point != points_.end() &&
       std::all_of(point->events.begin() + 1, point->events.end(),
                   [this](EventId event) {
                     return of_other(true, [&] { return driver_.is_complete(event); });
                   });
       ++point) {
    orderable_.store(point->epoch, std::memory_order_release);
  }
}

void DeviceTimeline::note_passed(Epoch epoch) {
  passed_.store(std::max(epoch, passed()), std::memory_order_release);
  orderable_.store(std::max(epoch, last_orderable()), std::memory_order_release);
  while (!points_.empty() && points_.front().epoch <= passed()) {
    unused_.push_back(std::move(points_.front().events));
    points_.pop_front();
  }
}

const DeviceTimeline::Point* DeviceTimeline::point_behind(Epoch epoch) const {
  const auto point = std::ranges::lower_bound(points_, epoch, {}, &Point::epoch);
  return has_passed(epoch) || point == points_.end() ? nullptr : &*point;
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
    return wait_during_captures();
  }
  std::optional<Point> point;
  {
    const MutexLock lock(mutex_);
    if (const Point* behind = point_behind(epoch)) {
      point = *behind;
      ++waiting_;
    }
  }
  return !point || wait_for(*point);
}

// The caller has counted itself in `waiting_`.
bool DeviceTimeline::wait_for(const Point& point) {
  bool has_passed = false;
  try {
    driver_.wait(point.events.front());
    has_passed = wait_for_others(point);
  } catch (...) {
    const MutexLock lock(mutex_);
    --waiting_;
    throw;
  }
  const MutexLock lock(mutex_);
  --waiting_;
  if (has_passed) {
    note_passed(point.epoch);
  }
  return has_passed;
}

std::chrono::nanoseconds DeviceTimeline::limit() const {
  const bool gave_up = std::chrono::steady_clock::now() < gave_up_.load() + patience_;
  return gave_up ? patience_ / kBrief : patience_;
}

bool DeviceTimeline::wait_for_others(const Point& point) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit();
  for (auto event = point.events.begin() + 1; event != point.events.end(); ++event) {
    while (!of_other(true, [&] { return driver_.is_complete(*event); })) {
      if (Clock::now() >= end) {
        gave_up_ = Clock::now();
        return false;
      }
      std::this_thread::sleep_for(kPause);
    }
  }
  return true;
}

bool DeviceTimeline::wait_during_captures(OfOthers of_others) {
  // Later frees get a later stamp, so the wait covers all work before the frees of this epoch.
  const Epoch epoch = current_.fetch_add(1, std::memory_order_seq_cst);
  std::vector<ContextId> others;
  {
    const MutexLock lock(mutex_);
    find_contexts();
    others = others_;
  }
  driver_.wait_for_device(driver_.own_context());
  const auto wait = [this, others] {
    for (const ContextId other : others) {
      of_other(true, [&] {
        driver_.wait_for_device(other);
        return true;
      });
    }
  };
  if (of_others == OfOthers::kUnlimited) {
    wait();
  } else if (!others.empty() && !for_others_.run(wait, limit())) {
    gave_up_ = std::chrono::steady_clock::now();
    return false;
  }
  const MutexLock lock(mutex_);
  recorded_.store(std::max(epoch, recorded()), std::memory_order_release);
  note_passed(epoch);
  return true;
}

bool DeviceTimeline::order_before(Epoch epoch, StreamId stream) {
  const MutexLock lock(mutex_);
  if (has_passed(epoch)) {
    return true;
  }
  const Point* point = epoch <= last_orderable() ? point_behind(epoch) : nullptr;
  return point != nullptr && driver_.stream_wait(point->events.front(), stream);
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
