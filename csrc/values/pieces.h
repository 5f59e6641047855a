// Pieces of what device memory holds, each with a reference, and a tensor that consists of some.
//
// Used with the machine locked, also for destruction.
#pragma once

#include "sim/control.h"

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

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
  // is very many parts of memory, or a piece between the first and the last one is smaller than
  // `least`. With `only_one` it is more than one piece.
  bool take_few(std::uint64_t address, std::size_t bytes, std::size_t least, bool only_one);
  // Adds what lies before `address`, where the pieces begin, if that is all of the first value before
  // its first piece, and at most `most` bytes. So the new value of the pieces leaves no small part of
  // the old one, which would keep all of it. If the first piece is of zeros, adds that many more. So
  // the value needs no other piece when the next column is written. Returns the number of bytes.
  std::size_t add_rest_before(std::uint64_t address, std::size_t most, std::size_t zeros);
  // The same behind `end`, where they end.
  std::size_t add_rest_behind(std::uint64_t end, std::size_t most, std::size_t zeros);
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
  // The bytes of each piece, null for zeros, and where it ends. False if some cannot be computed.
  struct Part {
    std::size_t end;
    const std::byte* bytes;
  };
  bool find_bytes(std::vector<Part>& parts) const;
  // Copies the bytes. False if some cannot be computed.
  bool copy_to(std::byte* to) const;

 private:
  bool add(std::uint64_t address, std::size_t bytes, std::size_t most_parts);
  // Does the range hold these bytes of the contents?
  static bool is_at(std::uint64_t address, std::size_t bytes, const ferro_sim_contents* contents,
                    std::size_t offset);
  static Value* value_of(const ferro_sim_piece& piece);
  void swap(Pieces& other) noexcept { pieces_.swap(other.pieces_); }

  c10::SmallVector<ferro_sim_piece, 1> pieces_;
};

// The tensor's elements are from now on the conjugates or negatives of what its memory holds.
void read_as(const at::Tensor& tensor, bool is_conj, bool is_neg);

// The elements of a device tensor at one moment.
struct Taken {
  at::DimVector sizes;
  at::DimVector strides;  // in the pieces
  at::ScalarType type = at::kFloat;
  Pieces pieces;
  bool is_conj = false;  // the elements are the conjugates of what the pieces hold
  bool is_neg = false;   // or the negatives

  // A host tensor of these elements; `writable`: one that no value shares. None if some cannot be
  // computed.
  std::optional<at::Tensor> compute(bool writable) const;
};

}  // namespace ferro::values
