#include "values/device_tensor.h"

#include "values/gpu.h"
#include "values/identity.h"
#include "values/value.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

namespace ferro::values {
namespace {

// Above this number of pieces, the bytes between them are forgotten too.
constexpr std::int64_t kMaxForgotten = 4096;
// Above this number of pieces, values are written instead of held.
constexpr std::int64_t kMaxHeld = 1024;
// Above this number of pieces, values include the bytes between them, unless these are too many.
constexpr std::int64_t kMaxApart = 256;
// Above this number of pieces, bytes between them are taken too, unless they are too many.
constexpr std::int64_t kMaxTaken = 4096;
// The bytes are too many if there are this many from the first to the last piece for each of theirs.
constexpr std::size_t kMaxGap = 64;
// The same for the bytes that a value includes: as many cost as much as a part of memory for each piece.
constexpr std::size_t kMaxSpread = 1024;
// At the ends of a span, as much as this part of it may be left of an older value.
constexpr std::size_t kMaxRest = 4;
// Of tensors of more pieces, the bytes between the pieces are checked and marked too.
constexpr std::int64_t kMaxChecked = 1 << 18;
// Up to this number of pieces, elements become known though bytes between them are not. Each mark takes
// about 50 bytes of the host.
constexpr std::int64_t kMaxMarked = 1 << 22;
// Origins are listed up to this number, and pieces get different ones up to this number.
constexpr std::size_t kMaxOrigins = 256;

ferro_sim_certainty least_certainty(std::uint64_t address, std::size_t bytes) {
  const int least = gpu().least_certainty(address, bytes);
  return least < 0 ? FERRO_SIM_UNKNOWN : static_cast<ferro_sim_certainty>(least);
}

}  // namespace

// Called for each tensor of each operator, and so without calls.
[[gnu::flatten]] bool DeviceTensor::describe(const at::Tensor& tensor) {
  using c10::DispatchKey;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  constexpr c10::DispatchKeySet kOthers =
      c10::python_ks |
      c10::DispatchKeySet({DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor});
  if (!keys.has_backend(c10::BackendComponent::CUDABit) || keys.has_any(kOthers)) {
    return false;
  }
  const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->data() == nullptr) {
    return false;
  }
  std::int64_t elements = 1;
  std::int64_t last = 0;
  const c10::IntArrayRef sizes = impl.sizes();
  const c10::IntArrayRef strides = impl.strides();
  sizes_.resize_for_overwrite(sizes.size());
  strides_.resize_for_overwrite(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes_[i] = sizes[i];
    strides_[i] = strides[i];
    elements *= sizes[i];
    last += (sizes[i] - 1) * strides[i];
  }
  if (elements == 0) {
    return false;
  }
  element_bytes_ = impl.dtype().itemsize();
  address_ = reinterpret_cast<std::uint64_t>(storage->data()) +
             static_cast<std::uint64_t>(impl.storage_offset()) * element_bytes_;
  elements_ = elements;
  span_ = static_cast<std::size_t>(last + 1) * element_bytes_;
  type_ = impl.dtype().toScalarType();
  is_conj_ = keys.has(DispatchKey::Conjugate);
  is_neg_ = keys.has(DispatchKey::Negative);
  return true;
}

std::int64_t DeviceTensor::elements_together(std::size_t* outer) const {
  std::size_t dimensions = sizes_.size();
  std::int64_t together = 1;
  while (dimensions > 0 && (sizes_[dimensions - 1] == 1 || strides_[dimensions - 1] == together)) {
    together *= sizes_[--dimensions];
  }
  if (outer != nullptr) {
    *outer = dimensions;
  }
  return together;
}

std::size_t DeviceTensor::largest_gap() const {
  std::size_t outer = 0;
  std::int64_t extent = elements_together(&outer);  // of what the inner dimensions span
  std::int64_t largest = 0;
  while (outer-- > 0) {
    largest = std::max(largest, strides_[outer] - extent);
    extent += (sizes_[outer] - 1) * strides_[outer];
  }
  return static_cast<std::size_t>(largest) * element_bytes_;
}

template <typename Visit>
void DeviceTensor::for_each_run(const Visit& visit) const {
  std::size_t outer = 0;
  const std::int64_t together = elements_together(&outer);
  const std::size_t bytes = static_cast<std::size_t>(together) * element_bytes_;
  std::vector<std::int64_t> index(outer, 0);
  std::int64_t offset = 0;
  while (true) {
    if (!visit(address_ + static_cast<std::uint64_t>(offset) * element_bytes_, bytes)) {
      return;
    }
    std::size_t i = outer;
    while (i > 0 && ++index[i - 1] == sizes_[i - 1]) {
      --i;
      offset -= (sizes_[i] - 1) * strides_[i];
      index[i] = 0;
    }
    if (i == 0) {
      return;
    }
    offset += strides_[i - 1];
  }
}

ferro_sim_certainty DeviceTensor::certainty() const {
  return certainty(least_certainty(address_, span()));
}

ferro_sim_certainty DeviceTensor::certainty(const Origins& origins) const {
  const auto [least, most] = origins.of_span;
  // Most often all bytes are equally certain.
  return least == most && origins.pieces.size() < kMaxOrigins ? least : certainty(least);
}

ferro_sim_certainty DeviceTensor::certainty(ferro_sim_certainty of_span) const {
  if (of_span == FERRO_SIM_KNOWN || span() <= bytes() || runs() > kMaxChecked) {
    return of_span;
  }
  ferro_sim_certainty least = FERRO_SIM_KNOWN;
  for_each_run([&](std::uint64_t at, std::size_t run) {
    least = std::min(least, least_certainty(at, run));
    return least != of_span;
  });
  return least;
}

DeviceTensor::Origins DeviceTensor::origins(std::uint64_t address, std::size_t bytes) {
  static ferro_sim_origin_piece found[kMaxOrigins];
  Origins all;
  const std::int64_t count = gpu().origins(address, bytes, found, kMaxOrigins, &all.of_span);
  all.pieces = {found, static_cast<std::size_t>(std::max<std::int64_t>(count, 0))};
  return all;
}

void DeviceTensor::originate(const ferro_sim_origin& from) const {
  if (is_dense() || runs() > static_cast<std::int64_t>(kMaxOrigins)) {
    ferro_sim_origin all = from;
    if (!is_dense()) {
      for (const ferro_sim_origin_piece& piece : origins().pieces) {
        all.infinities = std::min(all.infinities, piece.origin.infinities);
        all.has_lows |= piece.origin.has_lows;
        all.is_positive &= piece.origin.is_positive;
        all.of_masks &= piece.origin.of_masks;
      }
    }
    gpu().originate(address_, span(), &all, 0);
    return;
  }
  std::size_t offset = 0;
  for_each_run([&](std::uint64_t at, std::size_t run) {
    gpu().originate(at, run, &from, offset);
    offset += run;
    return true;
  });
}

std::optional<at::Tensor> DeviceTensor::doubts(std::int64_t most, std::int64_t most_parts) const {
  const auto spanned = static_cast<std::int64_t>(span() / element_bytes_);
  if (spanned > most && !is_dense()) {
    return std::nullopt;
  }
  const at::Tensor all = at::detail::empty_cpu({spanned}, at::kByte);
  if (gpu().doubts(address_, span(), element_bytes_, all.mutable_data_ptr<std::uint8_t>(),
                   static_cast<std::size_t>(most_parts)) != 0) {
    return std::nullopt;
  }
  const at::Tensor elements = all.as_strided(sizes_, strides_);
  const bool any_known = elements.min().item<std::uint8_t>() < FERRO_SIM_KNOWN - FERRO_SIM_UNKNOWN;
  return any_known ? std::optional(elements) : std::nullopt;
}

std::optional<at::Tensor> DeviceTensor::lay_out_doubts(const at::Tensor& doubts,
                                                       std::int64_t most) const {
  at::Tensor laid_out = is_dense() ? at::detail::empty_strided_cpu(sizes_, strides_, at::kByte)
                                   : at::detail::empty_cpu(sizes_, at::kByte);
  laid_out.copy_(doubts.expand(sizes_));
  const auto* const doubt = laid_out.const_data_ptr<std::uint8_t>();
  constexpr std::uint8_t kUnknown = FERRO_SIM_KNOWN - FERRO_SIM_UNKNOWN;
  bool is_unknown = doubt[0] == kUnknown;
  std::int64_t changes = 0;
  for (std::int64_t i = 1; i < elements_; ++i) {
    is_unknown = is_unknown && doubt[i] == kUnknown;
    changes += doubt[i] != doubt[i - 1] ? 1 : 0;
  }
  return is_unknown || changes > most ? std::nullopt : std::optional(laid_out);
}

void DeviceTensor::mark(const at::Tensor& laid_out_doubts) const {
  const auto* doubts = laid_out_doubts.const_data_ptr<std::uint8_t>();
  const auto mark_run = [&](std::uint64_t address, std::size_t run) {
    const std::size_t count = run / element_bytes_;
    for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
      while (end < count && doubts[end] == doubts[begin]) {
        ++end;
      }
      if (doubts[begin] != 0) {
        gpu().write(address + begin * element_bytes_, nullptr, (end - begin) * element_bytes_,
                    static_cast<ferro_sim_certainty>(FERRO_SIM_KNOWN - doubts[begin]), 1);
      }
    }
    doubts += count;
    return true;
  };
  if (is_dense()) {
    mark_run(address_, span());
  } else {
    for_each_run(mark_run);
  }
}

Taken DeviceTensor::zeros() const {
  Taken taken{sizes_, strides_, type_, {}, is_conj_, is_neg_};
  taken.pieces.add_zeros(span());
  return taken;
}

void DeviceTensor::take(std::optional<Taken>& taken) const {
  Pieces& pieces = taken.emplace(sizes_, strides_, type_, Pieces(), is_conj_, is_neg_).pieces;
  bool mapped = true;
  if (is_dense() || (runs() > kMaxTaken && span() / bytes() < kMaxGap)) {
    mapped = pieces.add(address_, span());
  } else if (pieces.take_few(address_, span(), largest_gap() + 1, span() / bytes() >= kMaxGap)) {
    // The bytes between the elements may belong to values that no operand needs, unless each piece
    // is larger than a gap. They may also be very many pieces, so these are not listed.
    return;
  } else if (runs() > kMaxChecked) {
    mapped = false;
  } else {
    for_each_run([&](std::uint64_t at, std::size_t run) {
      mapped = pieces.add(at, run);
      return mapped;
    });
    taken->strides = at::DimVector(c10::TensorType::contiguousStridesOf(sizes_));
  }
  if (!mapped) {
    taken.reset();
  }
}

at::Tensor DeviceTensor::make_host_tensor() const {
  // Without the dispatcher, so that the program's modes do not see it.
  at::Tensor made = is_dense() ? at::detail::empty_strided_cpu(sizes_, strides_, type_)
                               : at::detail::empty_cpu(sizes_, type_);
  read_as(made, is_conj_, is_neg_);
  return made;
}

std::optional<at::Tensor> DeviceTensor::lay_out(const at::Tensor& host) const {
  if (host.sizes() != at::IntArrayRef(sizes_) || host.scalar_type() != type_ || !host.is_cpu()) {
    return std::nullopt;
  }
  if (host.is_conj() == is_conj_ && host.is_neg() == is_neg_ &&
      (is_dense() ? host.strides() == at::IntArrayRef(strides_) : host.is_contiguous())) {
    return host;
  }
  at::Tensor laid_out = make_host_tensor();
  laid_out.copy_(host);
  return laid_out;
}

bool DeviceTensor::can_hold() const { return is_dense() || runs() <= kMaxHeld; }

void DeviceTensor::hold(Value& value, ferro_sim_certainty certainty) const {
  if (is_dense()) {
    gpu().hold(address_, span(), &value, 0, certainty);
    return;
  }
  std::size_t offset = 0;
  for_each_run([&](std::uint64_t at, std::size_t run) {
    gpu().hold(at, run, &value, offset, certainty);
    offset += run;
    return true;
  });
}

bool DeviceTensor::is_interleaved() const {
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] > 1 && strides_[i] <= 0) {
      return false;
    }
  }
  return span() > bytes() && span() / bytes() < kMaxSpread && runs() > kMaxApart;
}

std::optional<DeviceTensor::Span> DeviceTensor::take_span() const {
  Pieces pieces;
  if (!pieces.add(address_, span())) {
    return std::nullopt;
  }
  const std::size_t most = span() / kMaxRest;
  const std::size_t before = pieces.add_rest_before(address_, most, largest_gap());
  pieces.add_rest_behind(address_ + span(), most, largest_gap());
  const std::size_t all = pieces.bytes();
  if (before % element_bytes_ != 0 || all % element_bytes_ != 0) {
    // A value of elements of another size.
    pieces = {};
    pieces.add(address_, span());
    return Span{
        {{static_cast<std::int64_t>(span() / element_bytes_)}, {1}, type_, std::move(pieces)}, 0};
  }
  return Span{{{static_cast<std::int64_t>(all / element_bytes_)}, {1}, type_, std::move(pieces)},
              before};
}

std::optional<at::Tensor> DeviceTensor::lay_onto(const at::Tensor& span, std::size_t before,
                                                 const at::Tensor& host) const {
  if (host.sizes() != at::IntArrayRef(sizes_) || host.scalar_type() != type_ || !host.is_cpu()) {
    return std::nullopt;
  }
  at::Tensor elements = span.as_strided(
      sizes_, strides_, span.storage_offset() + static_cast<std::int64_t>(before / element_bytes_));
  read_as(elements, is_conj_, is_neg_);
  elements.copy_(host);
  return span;
}

ferro_sim_origin DeviceTensor::origin_of_span(std::uint64_t begin, std::size_t bytes,
                                              const ferro_sim_origin& from) const {
  ferro_sim_origin all = from;
  Identity identity(from.identity);
  for (const ferro_sim_origin_piece& piece : origins(begin, bytes).pieces) {
    all.infinities = std::min(all.infinities, piece.origin.infinities);
    all.has_lows |= piece.origin.has_lows;
    all.is_positive &= piece.origin.is_positive;
    all.of_masks &= piece.origin.of_masks;
    identity.add(piece.origin.identity).add(piece.offset).add(piece.bytes);
  }
  all.is_unset = 0;
  all.identity = identity.add_all(sizes_).add_all(strides_).value();
  return all;
}

bool DeviceTensor::hold_span(Value& value, std::uint64_t begin, std::size_t bytes,
                             ferro_sim_certainty certainty) const {
  mark_unset(begin, bytes, certainty);
  const ferro_sim_certainty of_span = least_certainty(address_, span());
  if (gpu().exchange(begin, bytes, &value, 0) != 0) {
    return false;
  }
  if (certainty == FERRO_SIM_KNOWN || runs() <= kMaxChecked) {
    // Most often all bytes are known.
    if (std::min(certainty, of_span) != FERRO_SIM_KNOWN && runs() <= kMaxMarked) {
      mark_runs(certainty);
    }
  } else {
    gpu().write(address_, nullptr, span(), std::min(certainty, of_span), 1);
  }
  return true;
}

void DeviceTensor::mark_unset(std::uint64_t begin, std::size_t bytes,
                              ferro_sim_certainty certainty) const {
  if (runs() <= kMaxChecked) {
    return;
  }
  for (const ferro_sim_origin_piece& piece : origins(begin, bytes).pieces) {
    if (piece.origin.is_unset != 0) {
      gpu().write(begin, nullptr, piece.bytes, certainty, 1);
    }
    begin += piece.bytes;
  }
}

void DeviceTensor::mark_runs(ferro_sim_certainty certainty) const {
  for_each_run([&](std::uint64_t at, std::size_t run) {
    gpu().write(at, nullptr, run, certainty, 1);
    return true;
  });
}

void DeviceTensor::write(const at::Tensor& laid_out, ferro_sim_certainty certainty,
                         const ferro_sim_origin& from) const {
  write_bytes(laid_out, certainty);
  originate(from);
}

void DeviceTensor::write_bytes(const at::Tensor& laid_out, ferro_sim_certainty certainty) const {
  const auto* from = static_cast<const std::byte*>(laid_out.const_data_ptr());
  if (is_dense()) {
    gpu().write(address_, from, span(), certainty, 0);
    return;
  }
  mark_unset(address_, span(), certainty);
  const bool piecewise = runs() <= (certainty == FERRO_SIM_KNOWN ? kMaxMarked : kMaxChecked);
  const ferro_sim_certainty of_span =
      piecewise ? certainty : std::min(certainty, least_certainty(address_, span()));
  for_each_run([&](std::uint64_t at, std::size_t run) {
    gpu().write(at, from, run, piecewise ? certainty : FERRO_SIM_KNOWN, 0);
    from += run;
    return true;
  });
  if (!piecewise) {
    gpu().write(address_, nullptr, span(), of_span, 1);
  }
}

void DeviceTensor::forget(bool keep, const ferro_sim_origin& from) const {
  if (is_dense()) {
    gpu().forget(address_, span(), keep ? 1 : 0, &from, 0);
    return;
  }
  if (runs() > kMaxForgotten) {
    gpu().forget(address_, span(), 1, &from, 0);
    return;
  }
  const bool has_origins = runs() <= static_cast<std::int64_t>(kMaxOrigins);
  std::size_t offset = 0;
  for_each_run([&](std::uint64_t at, std::size_t run) {
    if (has_origins) {
      gpu().forget(at, run, keep ? 1 : 0, &from, offset);
    } else {
      gpu().write(at, nullptr, run, FERRO_SIM_UNKNOWN, keep ? 1 : 0);
    }
    offset += run;
    return true;
  });
  if (!has_origins) {
    originate(from);
  }
}

void DeviceTensor::forget_in_replays(int device, void* stream, const ferro_sim_origin& from) const {
  const auto forget_all = [&] {
    gpu().forget_in_replays(device, stream, address_, span(), &from, 0, 0, 0);
  };
  if (is_dense() || runs() > kMaxForgotten) {
    forget_all();
    return;
  }
  // Runs at equal distances are one range.
  struct Rows {
    std::uint64_t begin;
    std::uint64_t last;
    std::size_t pitch;
    std::size_t offset;
  };
  std::vector<Rows> ranges;
  std::size_t width = 0;
  std::size_t offset = 0;
  for_each_run([&](std::uint64_t at, std::size_t run) {
    width = run;
    Rows* const rows = ranges.empty() ? nullptr : &ranges.back();
    const bool is_second = rows != nullptr && rows->last == rows->begin && at > rows->last + run;
    if (is_second || (rows != nullptr && rows->pitch > 0 && at == rows->last + rows->pitch)) {
      rows->pitch = static_cast<std::size_t>(at - rows->last);
      rows->last = at;
    } else {
      ranges.push_back({at, at, 0, offset});
    }
    offset += run;
    return true;
  });
  if (ranges.size() > kMaxOrigins) {
    forget_all();
    return;
  }
  for (const Rows& rows : ranges) {
    const auto bytes = static_cast<std::size_t>(rows.last - rows.begin) + width;
    gpu().forget_in_replays(device, stream, rows.begin, bytes, &from, rows.offset,
                            rows.pitch == 0 ? 0 : width, rows.pitch);
  }
}

}  // namespace ferro::values
