#include "values/pieces.h"

#include "values/gpu.h"
#include "values/value.h"

#include <ATen/EmptyTensor.h>

#include <cstring>
#include <limits>

namespace ferro::values {
namespace {

at::Tensor view_of(const c10::Storage& storage, std::size_t offset, const Taken& taken) {
  const auto type = c10::scalarTypeToTypeMeta(taken.type);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      taken.sizes, taken.strides, static_cast<std::int64_t>(offset / type.itemsize()));
  return view;
}

}  // namespace

Pieces::~Pieces() {
  for (const ferro_sim_piece& piece : pieces_) {
    gpu().release(piece.contents);
  }
}

bool Pieces::add(std::uint64_t address, std::size_t bytes) {
  return add(address, bytes, std::numeric_limits<std::size_t>::max());
}

bool Pieces::take_one(std::uint64_t address, std::size_t bytes) {
  *this = {};
  if (add(address, bytes, kMaxParts) && count() == 1 && this->bytes() == bytes) {
    return true;
  }
  *this = {};
  return false;
}

bool Pieces::add(std::uint64_t address, std::size_t bytes, std::size_t most_parts) {
  const std::size_t before = pieces_.size();
  std::size_t room = 4;
  while (true) {
    pieces_.resize(before + room);
    const std::int64_t count =
        gpu().take_pieces(address, bytes, pieces_.data() + before, room, most_parts);
    const auto found = static_cast<std::size_t>(count < 0 ? 0 : count);
    if (found <= room) {
      pieces_.resize(before + found);
      return count >= 0;
    }
    pieces_.resize(before);
    room = found;
  }
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
    if (shared) {
      const auto start = static_cast<std::size_t>(shared->storage_offset()) * shared->itemsize();
      return view_of(shared->storage(), start + offset, *this);
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
