#include "values/choices.h"

#include "values/identity.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
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

  // The same if the positions for which `is_low` is true come last.
  template <typename IsLow>
  void draw_above(std::uint64_t seed, const Ranks& ranks, std::int64_t length, std::int64_t* to,
                  std::int64_t stride, const IsLow& is_low) {
    if (ranks.independent ? draw_each_above(seed, length, to, stride, is_low)
                          : draw_first_above(seed, ranks, length, to, stride, is_low)) {
      return;
    }
    state_ = seed * 0xd1342543de82ef95;
    shuffle(extent_, false);
    std::vector<std::uint32_t> whole(order_.begin(),
                                     order_.begin() + static_cast<std::ptrdiff_t>(extent_));
    restore();
    const auto end_of_high = std::stable_partition(whole.begin(), whole.end(),
                                                   [&](std::uint32_t at) { return !is_low(at); });
    const auto high = static_cast<std::uint64_t>(end_of_high - whole.begin());
    for (std::int64_t i = 0; i < length; ++i) {
      const auto count = static_cast<std::uint64_t>(i);
      std::uint64_t place = std::min(static_cast<std::uint64_t>(ranks.first) + count, extent_ - 1);
      place = ranks.ascending ? extent_ - 1 - place : place;
      if (ranks.independent) {
        place = Identity(seed).add(count).value() % (high > 0 ? high : extent_);
      }
      to[i * stride] = whole[place];
    }
  }
  bool can_list() const { return extent_ <= kMaxShuffled; }

 private:
  // Both draw without the whole order, as long as enough positions are not low. False: they may not
  // be.
  template <typename IsLow>
  bool draw_first_above(std::uint64_t seed, const Ranks& ranks, std::int64_t length,
                        std::int64_t* to, std::int64_t stride, const IsLow& is_low) {
    const auto needed = static_cast<std::uint64_t>(ranks.first + length);
    for (std::uint64_t wanted = 2 * needed + 16; !ranks.ascending && wanted <= extent_ / 4;
         wanted *= 4) {
      state_ = seed * 0xd1342543de82ef95;
      shuffle(wanted, false);
      std::int64_t rank = -ranks.first;
      for (std::uint64_t i = 0; i < wanted && rank < length; ++i) {
        if (is_low(order_[i])) {
          continue;
        }
        if (rank >= 0) {
          to[rank * stride] = order_[i];
        }
        ++rank;
      }
      restore();
      if (rank == length) {
        return true;
      }
    }
    return false;
  }
  template <typename IsLow>
  bool draw_each_above(std::uint64_t seed, std::int64_t length, std::int64_t* to,
                       std::int64_t stride, const IsLow& is_low) {
    constexpr std::uint64_t kTrials = 64;
    for (std::int64_t i = 0; i < length; ++i) {
      std::uint64_t trial = 0;
      do {
        if (trial == kTrials) {
          return false;
        }
        to[i * stride] = static_cast<std::int64_t>(
            Identity(seed).add(static_cast<std::uint64_t>(i)).add(trial++).value() % extent_);
      } while (is_low(to[i * stride]));
    }
    return true;
  }

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
  std::vector<std::pair<std::uint32_t, std::uint32_t>> exchanged_;
};

// The offset of the element at a position in the order of a contiguous tensor.
std::int64_t offset_of(std::int64_t position, const at::DimVector& sizes,
                       const at::DimVector& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = sizes.size(); i > 0; --i) {
    offset += position % sizes[i - 1] * strides[i - 1];
    position /= sizes[i - 1];
  }
  return offset;
}

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

// Tells which numbers are low. Looks only at the numbers that it is asked for, because they are few of
// a row, and rows of a vocabulary are long.
class Lows {
 public:
  explicit Lows(const ChosenFrom& from) : zeros_are_low_(from.zeros_are_low) {
    if (!from.lows || !from.lows->pieces.find_bytes(parts_)) {
      parts_.clear();
      return;
    }
    strides_ = from.lows->strides;
    type_ = from.lows->type;
    if (type_ != at::kFloat && type_ != at::kDouble && type_ != at::kHalf &&
        type_ != at::kBFloat16) {
      make_doubles(*from.lows);
    }
    element_bytes_ = c10::elementSize(type_);
  }

  bool any() const { return !parts_.empty(); }
  const at::DimVector& strides() const { return strides_; }
  // `offset`: that of the number in elements, according to the strides.
  bool is_low(std::int64_t offset) {
    std::byte bytes[sizeof(double)];
    read(static_cast<std::size_t>(offset) * element_bytes_, bytes);
    const double number = to_double(bytes);
    return number <= kLow || (zeros_are_low_ && number == 0);
  }

 private:
  void make_doubles(const Taken& taken) {
    const auto host = taken.compute(false);
    if (!host) {
      parts_.clear();
      return;
    }
    doubles_ = host->to(at::kDouble).contiguous();
    strides_ = doubles_.strides();
    type_ = at::kDouble;
    parts_ = {{doubles_.nbytes(), static_cast<const std::byte*>(doubles_.const_data_ptr())}};
  }

  void read(std::size_t at, std::byte* to) {
    std::size_t left = element_bytes_;
    const std::size_t begin = part_ == 0 ? 0 : parts_[part_ - 1].end;
    if (at < begin || at >= parts_[part_].end) {
      part_ = static_cast<std::size_t>(
          std::upper_bound(parts_.begin(), parts_.end(), at,
                           [](std::size_t place, const auto& part) { return place < part.end; }) -
          parts_.begin());
    }
    for (std::size_t part = part_; left > 0; ++part) {
      const std::size_t skipped = at - (part == 0 ? 0 : parts_[part - 1].end);
      const std::size_t bytes = std::min(left, parts_[part].end - at);
      if (parts_[part].bytes == nullptr) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, parts_[part].bytes + skipped, bytes);
      }
      at += bytes;
      to += bytes;
      left -= bytes;
    }
  }

  double to_double(const std::byte* bytes) const {
    double number = 0;
    const auto convert = [&](auto typed) {
      std::memcpy(&typed, bytes, sizeof typed);
      number = static_cast<double>(typed);
    };
    switch (type_) {
      case at::kFloat:
        convert(float());
        break;
      case at::kHalf:
        convert(c10::Half());
        break;
      case at::kBFloat16:
        convert(c10::BFloat16());
        break;
      default:
        convert(double());
    }
    return number;
  }

  const bool zeros_are_low_;
  std::vector<Pieces::Part> parts_;
  std::size_t part_ = 0;  // of the last number
  at::DimVector strides_;
  at::ScalarType type_ = at::kDouble;
  std::size_t element_bytes_ = sizeof(double);
  at::Tensor doubles_;
};

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
  std::optional<Lows> lows;
  if (orders.can_list() && from.lows) {
    lows.emplace(from);
  }
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
    if (!lows || !lows->any()) {
      orders.draw(of_row, ranks, length, first, inner);
    } else {
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < index.size(); ++i) {
        offset += index[i] * lows->strides()[i];
      }
      orders.draw_above(of_row, ranks, length, first, inner, [&](std::int64_t position) {
        return lows->is_low(dimension ? offset + position * lows->strides()[*dimension]
                                      : offset_of(position, from.sizes, lows->strides()));
      });
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
