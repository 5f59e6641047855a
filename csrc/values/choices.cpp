#include "values/choices.h"

#include "values/identity.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace ferro::values {
namespace {

// Random orders of the positions below `extent`, one for each seed.
class Orders {
 public:
  explicit Orders(std::int64_t extent) : extent_(static_cast<std::uint64_t>(extent)) {}

  // Writes the positions of `length` ranks from the end that `ranks` says.
  void draw(std::uint64_t seed, const Ranks& ranks, std::int64_t length, std::int64_t* to,
            std::int64_t stride) {
    state_ = seed * 0xd1342543de82ef95;
    const auto first = static_cast<std::uint64_t>(ranks.first);
    if (ranks.independent) {
      for (std::int64_t i = 0; i < length; ++i) {
        to[i * stride] = static_cast<std::int64_t>(below(extent_));
      }
    } else if (extent_ > kMaxShuffled) {
      step(first, ranks.ascending, length, to, stride);
    } else {
      const auto wanted = std::min(first + static_cast<std::uint64_t>(length), extent_);
      shuffle(wanted, ranks.ascending);
      for (std::int64_t i = 0; i < length; ++i) {
        const std::uint64_t rank = std::min(first + static_cast<std::uint64_t>(i), extent_ - 1);
        to[i * stride] = order_[ranks.ascending ? extent_ - 1 - rank : rank];
      }
      restore();
    }
  }

  // The whole order, from the largest number on. Valid until the next call.
  const std::vector<std::uint32_t>& whole(std::uint64_t seed) {
    state_ = seed * 0xd1342543de82ef95;
    shuffle(extent_, false);
    whole_.assign(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(extent_));
    restore();
    return whole_;
  }
  bool can_list() const { return extent_ <= kMaxShuffled; }

 private:
  // Of more positions a row has a random step, which takes no memory for all of them.
  static constexpr std::uint64_t kMaxShuffled = 1 << 22;

  std::uint64_t below(std::uint64_t limit) {
    state_ += 0x9e3779b97f4a7c15;  // splitmix64
    std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    return limit >> 32 == 0 ? (mixed >> 32) * limit >> 32 : mixed % limit;
  }

  // Draws the ranks from both ends alternately, as many as are needed for `wanted` at one end. So
  // the largest and the smallest numbers are cheap to draw, and do not depend on `wanted`.
  void shuffle(std::uint64_t wanted, bool ascending) {
    while (order_.size() < extent_) {
      order_.push_back(static_cast<std::uint32_t>(order_.size()));
    }
    std::uint64_t begin = 0;
    std::uint64_t end = extent_;
    while (begin < end && (ascending ? extent_ - end : begin) < wanted) {
      exchange(begin, begin + below(end - begin));
      ++begin;
      if (begin < end && (ascending || begin < wanted)) {
        exchange(end - 1, begin + below(end - begin));
        --end;
      }
    }
  }

  void exchange(std::uint64_t one, std::uint64_t other) {
    std::swap(order_[one], order_[other]);
    exchanged_.emplace_back(static_cast<std::uint32_t>(one), static_cast<std::uint32_t>(other));
  }

  void restore() {
    for (auto at = exchanged_.rbegin(); at != exchanged_.rend(); ++at) {
      std::swap(order_[at->first], order_[at->second]);
    }
    exchanged_.clear();
  }

  void step(std::uint64_t first, bool ascending, std::int64_t length, std::int64_t* to,
            std::int64_t stride) {
    const std::uint64_t at = below(extent_);
    std::uint64_t by = 1 + below(extent_ - 1);
    while (std::gcd(by, extent_) != 1) {
      by = by % (extent_ - 1) + 1;
    }
    for (std::int64_t i = 0; i < length; ++i) {
      const std::uint64_t rank = std::min(first + static_cast<std::uint64_t>(i), extent_ - 1);
      const auto steps = static_cast<unsigned __int128>(ascending ? extent_ - 1 - rank : rank);
      to[i * stride] = static_cast<std::int64_t>((at + steps * by) % extent_);
    }
  }

  const std::uint64_t extent_;
  std::uint64_t state_ = 0;
  // Between calls each position is at its own place: most draws need few of many.
  static inline std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> whole_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> exchanged_;
};

// The seeds of rows, from their places in the contents that the numbers are part of. So views of the
// same numbers have the same rows.
class RowSeeds {
 public:
  RowSeeds(const ChosenFrom& from, std::uint64_t seed) : from_(from), seed_(seed) {
    ends_.reserve(from.origins.size());
    for (const ferro_sim_origin_piece& piece : from.origins) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + piece.bytes);
    }
  }

  // Of `extent` numbers from the byte `begin` on, `step` bytes apart.
  std::uint64_t of(std::uint64_t begin, std::uint64_t step, std::uint64_t extent) const {
    Identity row(seed_);
    row.add(extent).add(extent > 1 ? step : 0);
    const std::uint64_t last = begin + (extent - 1) * step;
    if (ends_.empty() || ends_.back() <= last) {
      return row.add(from_.identity).add(begin).value();
    }
    auto at = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) -
                                       ends_.begin());
    for (std::uint64_t from = begin; from <= last; from = ends_[at++]) {
      const ferro_sim_origin_piece& piece = from_.origins[at];
      const std::uint64_t skipped = from - (ends_[at] - piece.bytes);
      row.add(piece.origin.identity).add(piece.offset + skipped);
    }
    return row.value();
  }

 private:
  const ChosenFrom& from_;
  const std::uint64_t seed_;
  std::vector<std::uint64_t> ends_;
};

// The low numbers, in the order of a contiguous tensor; empty if there are none.
std::vector<char> find_lows(const ChosenFrom& from) {
  std::vector<char> lows;
  if (const auto host = from.lows ? from.lows->compute(false) : std::nullopt) {
    const at::Tensor numbers = host->to(at::kDouble).contiguous();
    const auto* const at = numbers.const_data_ptr<double>();
    lows.resize(static_cast<std::size_t>(numbers.numel()));
    for (std::size_t i = 0; i < lows.size(); ++i) {
      lows[i] = at[i] <= kLow || (from.zeros_are_low && at[i] == 0) ? 1 : 0;
    }
  }
  return lows;
}

}  // namespace

at::Tensor DrawnPositions::draw() const {
  at::Tensor host = at::detail::empty_cpu(sizes, at::kLong);
  auto* const to = host.mutable_data_ptr<std::int64_t>();
  std::int64_t extent = 1;
  std::int64_t inner = 1;  // rows that lie side by side
  std::int64_t numbers = 1;
  for (std::size_t i = 0; i < from.sizes.size(); ++i) {
    numbers *= from.sizes[i];
    extent *= !dimension || i == *dimension ? from.sizes[i] : 1;
    inner *= dimension && i > *dimension ? from.sizes[i] : 1;
  }
  const std::int64_t rows = numbers / std::max<std::int64_t>(extent, 1);
  const std::int64_t length = rows > 0 ? host.numel() / rows : 0;
  if (length == 0 || rows * length != host.numel() || extent == 0) {
    return host.zero_();
  }
  const RowSeeds seeds(from, seed);
  std::int64_t together = 1;
  bool in_one_step = true;
  for (std::size_t i = from.sizes.size(); !dimension && i > 0; --i) {
    in_one_step = in_one_step && (from.sizes[i - 1] == 1 || from.strides[i - 1] == together);
    together *= from.sizes[i - 1];
  }
  Orders orders(extent);
  const std::vector<char> lows = orders.can_list() ? find_lows(from) : std::vector<char>();
  std::vector<std::uint32_t> chosen;
  const std::uint64_t step =
      dimension ? static_cast<std::uint64_t>(from.strides[*dimension]) * from.element_bytes
                : from.element_bytes;
  at::DimVector index(from.sizes.size(), 0);
  std::uint64_t begin = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint64_t of_row = in_one_step
                                     ? seeds.of(begin, step, static_cast<std::uint64_t>(extent))
                                     : Identity(seed).add(from.identity).value();
    std::int64_t* const first = to + row / inner * inner * length + row % inner;
    if (lows.empty()) {
      orders.draw(of_row, ranks, length, first, inner);
    } else {
      const std::int64_t in_numbers = row / inner * inner * extent + row % inner;
      chosen = orders.whole(of_row);
      const auto end_of_high = std::stable_partition(
          chosen.begin(), chosen.end(),
          [&](std::uint32_t at) { return lows[in_numbers + at * inner] == 0; });
      const std::int64_t high = end_of_high - chosen.begin();
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t rank = std::min(ranks.first + i, extent - 1);
        std::int64_t place = ranks.ascending ? extent - 1 - rank : rank;
        if (ranks.independent) {
          place = static_cast<std::int64_t>(
              Identity(of_row).add(static_cast<std::uint64_t>(i)).value() %
              static_cast<std::uint64_t>(high > 0 ? high : extent));
        }
        first[i * inner] = chosen[place];
      }
    }
    for (std::size_t i = from.sizes.size(); dimension && i > 0; --i) {
      if (i - 1 == *dimension) {
        continue;
      }
      begin += static_cast<std::uint64_t>(from.strides[i - 1]) * from.element_bytes;
      if (++index[i - 1] < from.sizes[i - 1]) {
        break;
      }
      begin -=
          static_cast<std::uint64_t>(from.sizes[i - 1] * from.strides[i - 1]) * from.element_bytes;
      index[i - 1] = 0;
    }
  }
  return host;
}

}  // namespace ferro::values
