#include "sim/libraries/cufft/workspaces.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <span>

namespace ferro::sim {
namespace {

struct MeasuredPlan {
  FourierPlan plan;
  std::int64_t bytes;
};

constexpr auto kC = Transform::kComplex;
constexpr auto kR = Transform::kFromReal;
constexpr auto kI = Transform::kToReal;
// Sorted by plan.
constexpr MeasuredPlan kMeasured[] = {
#include "sim/libraries/cufft/measured.inc"
};

constexpr std::int64_t kLine = 1024;  // bytes
constexpr std::uint8_t kHalf = 4;     // bytes of a complex number of two of 16 bits

std::int64_t largest_prime(std::int64_t number) {
  std::int64_t largest = 1;
  for (std::int64_t prime = 2; prime * prime <= number; ++prime) {
    while (number % prime == 0) {
      largest = prime;
      number /= prime;
    }
  }
  return std::max(largest, number);
}

// Of a prime of up to 7.
bool is_power_of_one(std::int64_t number) {
  const std::int64_t prime = largest_prime(number);
  while (number % prime == 0 && prime > 1) number /= prime;
  return number == 1 && prime <= 7;
}

// The least number of at least `least` without prime factors above 5.
std::int64_t next_smooth(std::int64_t least) {
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t fives = 1; fives < best; fives *= 5) {
    for (std::int64_t threes = fives; threes < best; threes *= 3) {
      std::int64_t number = threes;
      while (number < least) number *= 2;
      best = std::min(best, number);
    }
  }
  return best;
}

// The length of the convolution of Bluestein's algorithm; 0 where a kernel needs none in memory.
std::int64_t bluestein_length(std::int64_t length, std::int64_t element) {
  constexpr std::int64_t kPrime = 127;
  constexpr std::int64_t kInOneKernel = 4096;
  const std::int64_t direct = element == 16 ? kInOneKernel / 2 : kInOneKernel;
  if (length <= direct || largest_prime(length) <= kPrime) return 0;
  return length <= kInOneKernel ? 2 * kInOneKernel : next_smooth(2 * length - 1);
}

std::int64_t rule_of_complex(std::int64_t length, std::int64_t batch, std::int64_t element) {
  if (const std::int64_t padded = bluestein_length(length, element)) {
    return 2 * round_up(padded * batch, 128) * element;
  }
  const std::int64_t prime = largest_prime(length);
  const std::int64_t most = prime <= 31 ? (element == 16 ? 8192 : 16384) : 81;
  return length <= most || prime > 127 ? 0 : batch * length * element;
}

std::int64_t rule_of_real(std::int64_t length, std::int64_t batch, std::int64_t element) {
  if (length % 2 != 0) {
    if (length <= 33 || (length <= 4096 && is_power_of_one(length))) return 0;
    const std::int64_t pairs = ceil_div(batch, 2);  // one complex row of two real ones
    const std::int64_t buffer = pairs * length * element;
    const std::int64_t inner = bluestein_length(length, element) != 0
                                   ? rule_of_complex(length, pairs, element)
                                   : round_up(buffer, kLine);
    return buffer + inner;
  }
  const bool is_power = (length & (length - 1)) == 0;
  if (length <= 32 || (is_power && length <= 16384)) return 0;
  const std::int64_t half = batch * (length / 2) * element;
  const std::int64_t more = batch * (length / 2 + 1) * element;
  if (bluestein_length(length / 2, element) != 0) {
    return half + rule_of_complex(length / 2, batch, element);
  }
  return batch > 1 && !is_power && largest_prime(length) <= 31 ? half : more;
}

// What a plan's buffers may be, whose number of rows is that of the last dimension.
std::array<std::int64_t, 10> candidates(const FourierPlan& plan) {
  std::int64_t length = 1;
  std::int64_t rows = plan.batch;
  for (std::size_t i = 0; i < plan.sizes.size() && plan.sizes[i] != 0; ++i) {
    rows *= length;
    length = plan.sizes[i];
  }
  const std::int64_t all = rows * length * plan.element;
  const std::int64_t half = rows * (length / 2) * plan.element;
  const std::int64_t more = rows * (length / 2 + 1) * plan.element;
  const std::int64_t pairs = ceil_div(rows, 2) * length * plan.element;
  const bool is_complex = plan.transform == Transform::kComplex;
  return {0,
          is_complex ? rule_of_complex(length, rows, plan.element)
                     : rule_of_real(length, rows, plan.element),
          all,
          half,
          more,
          half + round_up(more, kLine),
          half + round_up(half, kLine),
          more + round_up(more, kLine),
          pairs + round_up(pairs, kLine),
          round_up(all, kLine) + all};
}

std::span<const MeasuredPlan> measured_of_sizes(FourierPlan plan) {
  const auto without_batch = [](const FourierPlan& one, const FourierPlan& other) {
    FourierPlan a = one, b = other;
    a.batch = b.batch = 0;
    return a < b;
  };
  const auto begin = std::lower_bound(std::begin(kMeasured), std::end(kMeasured), plan,
                                      [&](const MeasuredPlan& one, const FourierPlan& other) {
                                        return without_batch(one.plan, other);
                                      });
  const auto end = std::upper_bound(begin, std::end(kMeasured), plan,
                                    [&](const FourierPlan& one, const MeasuredPlan& other) {
                                      return without_batch(one, other.plan);
                                    });
  return {begin, end};
}

// From a plan of the same sizes and another batch.
std::optional<std::int64_t> bytes_of_batch(const FourierPlan& plan) {
  const auto near = measured_of_sizes(plan);
  if (near.empty()) return std::nullopt;
  const auto far = [&](const MeasuredPlan& each) {
    return std::abs(
        std::log(static_cast<double>(each.plan.batch) / static_cast<double>(plan.batch)));
  };
  const MeasuredPlan& nearest = *std::ranges::min_element(near, {}, far);
  const auto its = candidates(nearest.plan);
  const auto same = std::ranges::find(its, nearest.bytes);
  if (same != its.end()) return candidates(plan)[static_cast<std::size_t>(same - its.begin())];
  return static_cast<std::int64_t>(static_cast<double>(nearest.bytes) /
                                   static_cast<double>(nearest.plan.batch) *
                                   static_cast<double>(plan.batch));
}

// The same for a plan of another kind that chooses the same kernels.
std::optional<std::int64_t> bytes_of_sizes(FourierPlan plan) {
  if (plan.element == kHalf && plan.is_apart) return std::nullopt;
  if (const auto bytes = bytes_of_batch(plan)) return bytes;
  const bool apart = plan.is_apart;
  plan.is_apart = false;
  if (const auto bytes = apart ? bytes_of_batch(plan) : std::nullopt) return bytes;
  if (plan.transform == Transform::kComplex) return std::nullopt;
  plan.transform = plan.transform == kR ? kI : kR;
  if (const auto bytes = bytes_of_batch(plan)) return bytes;
  plan.transform = plan.transform == kR ? kI : kR;
  plan.element = plan.element == 8 ? 16 : 8;
  if (const auto bytes = bytes_of_batch(plan)) return *bytes == 0 ? bytes : std::nullopt;
  return std::nullopt;
}

// Of the transforms along one dimension.
std::int64_t bytes_along(Transform transform, std::int64_t length, std::int64_t rows,
                         std::uint8_t element) {
  const FourierPlan plan{transform, element, false, {length}, rows};
  if (const auto bytes = bytes_of_sizes(plan)) return *bytes;
  return transform == Transform::kComplex ? rule_of_complex(length, rows, element)
                                          : rule_of_real(length, rows, element);
}

std::int64_t rule_of(const FourierPlan& plan) {
  std::size_t last = 0;
  std::int64_t rows = plan.batch;
  while (last + 1 < plan.sizes.size() && plan.sizes[last + 1] != 0) rows *= plan.sizes[last++];
  const std::int64_t length = plan.sizes[last];
  if (plan.element == kHalf) {
    constexpr std::int64_t kInOneKernel = 8192;
    const bool needs = plan.is_apart || length > kInOneKernel;
    return !needs ? 0 : rows * length * (plan.transform == Transform::kComplex ? 4 : 2);
  }
  std::int64_t most = bytes_along(plan.transform, length, rows, plan.element);
  const std::int64_t columns = plan.transform == Transform::kComplex ? length : length / 2 + 1;
  for (std::size_t i = 0; i < last; ++i) {
    most = std::max(most, bytes_along(Transform::kComplex, plan.sizes[i],
                                      rows / plan.sizes[i] * columns, plan.element));
  }
  return most;
}

}  // namespace

FourierWorkspace workspace_of(const FourierPlan& plan) {
  const auto at = std::lower_bound(
      std::begin(kMeasured), std::end(kMeasured), plan,
      [](const MeasuredPlan& one, const FourierPlan& other) { return one.plan < other; });
  if (at != std::end(kMeasured) && at->plan == plan) {
    return {static_cast<std::size_t>(at->bytes), true};
  }
  return {static_cast<std::size_t>(bytes_of_sizes(plan).value_or(rule_of(plan))), false};
}

std::size_t table_bytes(const FourierPlan& plan) {
  std::int64_t bytes = 0;
  for (const std::int64_t size : plan.sizes) {
    const bool halved = plan.transform != Transform::kComplex && size % 2 == 0;
    bytes += 2 * bluestein_length(halved ? size / 2 : size, plan.element) * plan.element;
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace ferro::sim
