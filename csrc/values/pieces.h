// Pieces of what device memory holds, each with a reference, and a tensor that consists of some.
//
// Used with the machine locked, also for destruction.
#pragma once

#include "sim/control.h"

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace ferro::values {

class Value;

class Pieces {
 public:
  Pieces() = default;
  Pieces(Pieces&& other) noexcept { swap(other); }
  Pieces& operator=(Pieces&& other) noexcept {
    Pieces(std::move(other)).swap(*this);
    return *this;
  }
  ~Pieces();

  // Appends what a range of addresses holds. False: it is not mapped.
  bool add(std::uint64_t address, std::size_t bytes);
  // Takes what a range of addresses holds in place of all pieces. False, and then there are none: it
  // is more than one piece, or more than `kMaxParts` parts of memory that may be one.
  bool take_one(std::uint64_t address, std::size_t bytes);
  void add_zeros(std::size_t bytes) { pieces_.push_back({nullptr, 0, bytes}); }
  std::size_t count() const { return pieces_.size(); }
  std::size_t bytes() const;
  // Calls `visit(value)` for each piece that is a value's.
  template <typename Visit>
  void for_each_value(const Visit& visit) const {
    for (const ferro_sim_piece& piece : pieces_) {
      if (Value* const value = value_of(piece)) {
        visit(*value);
      }
    }
  }
  // The value that holds all of it, and the offset there.
  Value* only_value(std::size_t* offset) const;
  bool only_zeros() const { return pieces_.size() == 1 && pieces_[0].contents == nullptr; }
  // Copies the bytes. False if some cannot be computed.
  bool copy_to(std::byte* to) const;

 private:
  static constexpr std::size_t kMaxParts = 64;
  bool add(std::uint64_t address, std::size_t bytes, std::size_t most_parts);
  static Value* value_of(const ferro_sim_piece& piece);
  void swap(Pieces& other) noexcept { pieces_.swap(other.pieces_); }

  std::vector<ferro_sim_piece> pieces_;
};

// The elements of a device tensor at one moment.
struct Taken {
  at::DimVector sizes;
  at::DimVector strides;  // in the pieces
  at::ScalarType type = at::kFloat;
  Pieces pieces;

  // A host tensor of these elements; `writable`: one that no value shares. None if some cannot be
  // computed.
  std::optional<at::Tensor> compute(bool writable) const;
};

}  // namespace ferro::values
