#include "ferro/adapter/history/sampling.h"

#include <random>

namespace ferro {

bool is_sampled(std::size_t bytes, std::size_t mean) {
  if (mean == 0) {
    return true;
  }
  struct Countdown {
    std::minstd_rand random{std::random_device{}()};
    double left = 0;  // bytes until the next sample
    std::size_t mean = 0;
  };
  thread_local Countdown countdown;
  const auto distance = [mean] {
    return std::exponential_distribution<double>(1 / static_cast<double>(mean))(countdown.random);
  };
  if (countdown.mean != mean) {
    countdown.mean = mean;
    countdown.left = distance();
  }
  countdown.left -= static_cast<double>(bytes);
  if (countdown.left > 0) {
    return false;
  }
  // The distribution is memoryless, so the bytes beyond the sample do not matter.
  countdown.left = distance();
  return true;
}

}  // namespace ferro
