#include "values/pieces.h"

#include "values/gpu.h"
#include "values/value.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace ferro::values {
namespace {

at::Tensor view_of(const c10::Storage& storage, std::size_t offset, const Taken& taken) {
  const auto type = c10::scalarTypeToTypeMeta(taken.type);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      taken.sizes, taken.strides, static_cast<std::int64_t>(offset / type.itemsize()));
  read_as(view, taken.is_conj, taken.is_neg);
  return view;
}

}  // namespace

void read_as(const at::Tensor& tensor, bool is_conj, bool is_neg) {
  // Without the dispatcher. Other types refuse even to be told that they are not conjugated.
  if (is_conj) {
    tensor.unsafeGetTensorImpl()->_set_conj(true);
  }
  if (is_neg) {
    tensor.unsafeGetTensorImpl()->_set_neg(true);
  }
}

Pieces::~Pieces() {
  for (const ferro_sim_piece& piece : pieces_) {
    gpu().release(piece.contents);
  }
}

bool Pieces::add(std::uint64_t address, std::size_t bytes) {
  return add(address, bytes, std::numeric_limits<std::size_t>::max());
}

bool Pieces::take_few(std::uint64_t address, std::size_t bytes, std::size_t least, bool only_one) {
  constexpr std::size_t kMaxParts = 64;
  *this = {};
  bool suits = add(address, bytes, kMaxParts) && this->bytes() == bytes;
  for (std::size_t i = 1; suits && i < count(); ++i) {
    suits = !only_one && (i + 1 == count() || pieces_[i].bytes >= least);
  }
  if (!suits) {
    *this = {};
  }
  return suits;
}

bool Pieces::add(std::uint64_t address, std::size_t bytes, std::size_t most_parts) {
  const std::size_t before = pieces_.size();
  ferro_sim_piece few[4];
  std::int64_t count = gpu().take_pieces(address, bytes, few, std::size(few), most_parts);
  auto found = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (found <= std::size(few)) {
    pieces_.append(few, few + found);
    return count >= 0;
  }
  // The machine is locked, so the second call finds the same number.
  pieces_.resize(before + found);
  count = gpu().take_pieces(address, bytes, pieces_.data() + before, found, most_parts);
  pieces_.resize(before + static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  return count >= 0;
}

std::size_t Pieces::add_rest_before(std::uint64_t address, std::size_t most, std::size_t zeros) {
  ferro_sim_piece& first = pieces_.front();
  const bool is_value = value_of(first) != nullptr;
  const std::size_t rest = is_value ? first.offset : first.contents == nullptr ? zeros : 0;
  if (rest > most || !is_at(address - rest, rest, first.contents, 0)) {
    return 0;
  }
  first.offset = 0;
  first.bytes += rest;
  return rest;
}

std::size_t Pieces::add_rest_behind(std::uint64_t end, std::size_t most, std::size_t zeros) {
  ferro_sim_piece& last = pieces_.back();
  std::size_t offset = 0;
  std::size_t rest = last.contents == nullptr ? zeros : 0;
  if (const Value* const value = value_of(last)) {
    offset = last.offset + last.bytes;
    rest = value->bytes() > offset ? value->bytes() - offset : 0;
  }
  if (rest > most || !is_at(end, rest, last.contents, offset)) {
    return 0;
  }
  last.bytes += rest;
  return rest;
}

bool Pieces::is_at(std::uint64_t address, std::size_t bytes, const ferro_sim_contents* contents,
                   std::size_t offset) {
  Pieces there;
  return bytes > 0 && there.take_few(address, bytes, 0, true) &&
         there.pieces_[0].contents == contents &&
         (contents == nullptr || there.pieces_[0].offset == offset);
}

std::size_t Pieces::bytes() const {
  std::size_t all = 0;
  for (const ferro_sim_piece& piece : pieces_) {
    all += piece.bytes;
  }
  return all;
}

Value* Pieces::value_of(const ferro_sim_piece& piece) {
  return piece.contents == nullptr ? nullptr : Value::of(piece.contents);
}

Value* Pieces::only_value(std::size_t* offset) const {
  if (pieces_.size() != 1) {
    return nullptr;
  }
  *offset = pieces_[0].offset;
  return value_of(pieces_[0]);
}

bool Pieces::find_bytes(std::vector<Part>& parts) const {
  std::size_t end = 0;
  for (const ferro_sim_piece& piece : pieces_) {
    const std::byte* from = nullptr;
    if (piece.contents != nullptr) {
      from = static_cast<const std::byte*>(piece.contents->kind->bytes(piece.contents));
      if (from == nullptr) {
        return false;
      }
      from += piece.offset;
    }
    end += piece.bytes;
    parts.push_back({end, from});
  }
  return true;
}

bool Pieces::copy_to(std::byte* to) const {
  for (const ferro_sim_piece& piece : pieces_) {
    if (piece.contents == nullptr) {
      std::memset(to, 0, piece.bytes);
    } else {
      const auto* from = static_cast<const std::byte*>(piece.contents->kind->bytes(piece.contents));
      if (from == nullptr) {
        return false;
      }
      std::memcpy(to, from + piece.offset, piece.bytes);
    }
    to += piece.bytes;
  }
  return true;
}

std::optional<at::Tensor> Taken::compute(bool writable) const {
  std::size_t offset = 0;
  if (Value* const value = pieces.only_value(&offset);
      value != nullptr && offset % c10::elementSize(type) == 0) {
    const at::Tensor& computed = value->compute();
    if (!computed.defined()) {
      return std::nullopt;
    }
    std::optional<at::Tensor> shared;
    if (!writable) {
      shared = computed;
    } else if (offset == 0 && pieces.bytes() == computed.nbytes()) {
      shared = value->take_over();
    }
    const at::Tensor& found = shared ? *shared : computed;
    const auto start = static_cast<std::size_t>(found.storage_offset()) * found.itemsize();
    if (shared) {
      return view_of(found.storage(), start + offset, *this);
    }
    // The elements may be few of the value's.
    const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
    if (elements * c10::elementSize(type) < pieces.bytes()) {
      at::Tensor copy = at::detail::empty_cpu(sizes, type);
      read_as(copy, is_conj, is_neg);
      copy.copy_(view_of(found.storage(), start + offset, *this));
      return copy;
    }
  }
  const auto bytes = static_cast<std::int64_t>(pieces.bytes());
  const at::Tensor buffer = at::detail::empty_cpu({bytes}, at::kByte);
  if (!pieces.copy_to(static_cast<std::byte*>(buffer.mutable_data_ptr()))) {
    return std::nullopt;
  }
  return view_of(buffer.storage(), 0, *this);
}

}  // namespace ferro::values
