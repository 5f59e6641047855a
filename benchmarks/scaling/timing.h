// Host time of short operations, in nanoseconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace ferro {

using Clock = std::chrono::steady_clock;

inline double nanoseconds(Clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Counts only while this thread runs, so other programs do not add to the measured time. A reading
// is a system call.
struct ThreadClock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<ThreadClock, duration>;

  static time_point now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + duration(time.tv_nsec));
  }
};

// The difference between two consecutive readings of a clock.
template <typename AnyClock>
double cost_of_clock() {
  static const double kCost = [] {
    std::vector<double> readings(1'000);
    for (double& reading : readings) {
      const auto begin = AnyClock::now();
      reading = nanoseconds(AnyClock::now() - begin);
    }
    return median(readings);
  }();
  return kCost;
}

template <typename AnyClock = Clock>
double without_clock(double time) {
  return std::max(time - cost_of_clock<AnyClock>(), 0.0);
}

// The time limit of a turn. An operation that takes longer runs once.
class Effort {
 public:
  explicit Effort(double milliseconds) : turn_(milliseconds * 1e6) {}

  // For operations that can be repeated directly: the median of many loops, each shorter than a
  // time slice.
  template <typename Body>
  double of_loops(Body body) const {
    const auto loop = [&](std::size_t count) {
      const Clock::time_point begin = Clock::now();
      for (std::size_t i = 0; i < count; ++i) {
        body();
      }
      return without_clock(nanoseconds(Clock::now() - begin));
    };
    std::size_t count = 1;
    double time = loop(count);
    if (time > turn_) {
      return time;
    }
    for (; time < turn_ / kLoops; time = loop(count)) {
      count *= 2;
    }
    std::vector<double> times;
    double spent = 0;
    while (times.size() < 2 || (times.size() < kLoops && spent < turn_)) {
      times.push_back(loop(count) / static_cast<double>(count));
      spent += times.back() * static_cast<double>(count);
    }
    return median(times);
  }

  // For operations that need preparation: the median of some single ones. `one` returns its time.
  template <typename One>
  double of_single(One one) const {
    const Clock::time_point begin = Clock::now();
    const double first = one();
    if (nanoseconds(Clock::now() - begin) > turn_) {
      return first;
    }
    std::vector<double> times;
    while (times.size() < kFewestSingle ||
           (times.size() < kMostSingle && nanoseconds(Clock::now() - begin) < turn_)) {
      times.push_back(one());
    }
    return median(times);
  }

 private:
  static constexpr std::size_t kLoops = 64;
  static constexpr std::size_t kFewestSingle = 3;
  static constexpr std::size_t kMostSingle = 30;

  const double turn_;
};

template <typename Body>
double time_of(Body body) {
  const Clock::time_point begin = Clock::now();
  body();
  return without_clock(nanoseconds(Clock::now() - begin));
}

}  // namespace ferro
