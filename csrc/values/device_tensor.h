// A tensor of the simulated GPU by its addresses, so that queued work keeps no memory alive.
//
// Plain values. All that touches memory is called within a function that the GPU calls in the order
// of a stream, below the program's modes (`BelowModes`).
#pragma once

#include "values/pieces.h"

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ferro::values {

class Value;

class DeviceTensor {
 public:
  // False for a tensor without strided elements in device memory: sparse, nested, empty.
  bool describe(const at::Tensor& tensor);

  std::uint64_t address() const { return address_; }
  std::int64_t elements() const { return elements_; }
  const at::DimVector& sizes() const { return sizes_; }
  const at::DimVector& strides() const { return strides_; }
  std::size_t element_bytes() const { return element_bytes_; }
  at::ScalarType type() const { return type_; }
  // Its elements are the bytes, and not what they are conjugated or negated.
  bool is_plain() const { return !is_conj_ && !is_neg_; }
  std::size_t bytes() const { return element_bytes_ * static_cast<std::size_t>(elements_); }

  // That of its least certain element, or less: bytes between many pieces count too.
  ferro_sim_certainty certainty() const;
  // The same, given that of the least certain byte from the first element to the last.
  ferro_sim_certainty certainty(ferro_sim_certainty of_span) const;
  // Makes `taken` what its elements are now. None: its memory is gone, or it would take too many pieces.
  void take(std::optional<Taken>& taken) const;
  // Where its elements come from, and bytes between them too, from the first element on; only the
  // first pieces of very many. Valid until the next call.
  struct Origins {
    std::span<const ferro_sim_origin_piece> pieces;
    // Of the bytes between the elements too, and the most certain one of the listed pieces.
    ferro_sim_certainties of_span = {FERRO_SIM_UNKNOWN, FERRO_SIM_UNKNOWN};
  };
  Origins origins() const { return origins(address_, span()); }
  // `certainty`, given where its elements come from.
  ferro_sim_certainty certainty(const Origins& origins) const;
  // Zeros in place of what its elements are now.
  Taken zeros() const;
  // How far each element is from known (0 for known, 2 for unknown), as a host tensor of bytes. None:
  // all are unknown, it has gaps and spans more than `most` elements, or more than `most_parts` parts
  // of it are not known.
  std::optional<at::Tensor> doubts(std::int64_t most, std::int64_t most_parts) const;
  // A host tensor of the same layout as far as elements are dense, uninitialised.
  at::Tensor make_host_tensor() const;
  // The same elements, laid out as `hold` and `write` need them. None if the sizes or types differ.
  std::optional<at::Tensor> lay_out(const at::Tensor& host) const;

  // Can its memory hold a value by reference? Otherwise it has too many pieces.
  bool can_hold() const;
  // Its elements are those of the value, which is made for this tensor, from now on.
  void hold(Value& value, ferro_sim_certainty certainty) const;
  // Has it many pieces with small gaps between them? Then one value of all bytes from the first element
  // to the last costs less than a part of memory for each piece.
  bool is_interleaved() const;
  // What these bytes are now, as elements without gaps.
  struct Span {
    Taken taken;
    std::size_t before = 0;  // bytes before its first element
  };
  // None: the memory is gone.
  std::optional<Span> take_span() const;
  // The computed span, after its elements were set to those of `host`. None if the sizes or types
  // differ.
  std::optional<at::Tensor> lay_onto(const at::Tensor& span, std::size_t before,
                                     const at::Tensor& host) const;
  // The origin of a value of a span, in which its elements have the origin `from`.
  ferro_sim_origin origin_of_span(std::uint64_t begin, std::size_t bytes,
                                  const ferro_sim_origin& from) const;
  // The span is that value from now on. Only its elements get the certainty. Of very many, bytes
  // between them get it too where theirs is higher or nothing wrote them yet; where they stay unknown,
  // the elements keep what they had. False, without an effect: other processes share the memory.
  bool hold_span(Value& value, std::uint64_t begin, std::size_t bytes,
                 ferro_sim_certainty certainty) const;
  // Writes a tensor that `lay_out` returned. Where that takes too many marks, the bytes between its
  // pieces get the certainty too, and all of them the least that any of them had. Bytes that nothing
  // wrote yet do not count: the program has no use for them before it writes them.
  void write(const at::Tensor& laid_out, ferro_sim_certainty certainty,
             const ferro_sim_origin& from) const;
  // What a captured operator writes: makes all bytes unknown now and in each replay.
  void forget_in_replays(int device, void* stream, const ferro_sim_origin& from) const;
  // Such doubts, expanded to its sizes, as `mark` needs them. None if they differ in more than `most`
  // places, or all elements are unknown.
  std::optional<at::Tensor> lay_out_doubts(const at::Tensor& doubts, std::int64_t most) const;
  // Says where the elements come from, and for many pieces also the bytes between them.
  void originate(const ferro_sim_origin& from) const;
  // Marks its elements, which are known.
  void mark(const at::Tensor& laid_out_doubts) const;
  // Makes all bytes unknown, and zeros them unless `keep`.
  void forget(bool keep, const ferro_sim_origin& from) const;

 private:
  static Origins origins(std::uint64_t address, std::size_t bytes);
  void write_bytes(const at::Tensor& laid_out, ferro_sim_certainty certainty) const;
  void mark_runs(ferro_sim_certainty certainty) const;
  // Before a write to very many pieces within this range: the certainty of bytes that nothing wrote yet
  // is that of the elements, so that these need no marks of their own.
  void mark_unset(std::uint64_t begin, std::size_t bytes, ferro_sim_certainty certainty) const;
  // Bytes from the first element to the last.
  std::size_t span() const { return span_; }
  bool is_dense() const { return span_ == bytes(); }
  // The number of contiguous elements in the last dimensions; `outer`: the number of dimensions
  // before.
  std::int64_t elements_together(std::size_t* outer = nullptr) const;
  std::int64_t runs() const { return elements_ / elements_together(); }
  // At least the bytes between any two pieces that follow each other.
  std::size_t largest_gap() const;
  // Calls `visit(address, bytes)` for the contiguous pieces, in the order of the elements, until it
  // returns false.
  template <typename Visit>
  void for_each_run(const Visit& visit) const;

  std::uint64_t address_ = 0;
  std::size_t element_bytes_ = 0;
  std::int64_t elements_ = 0;
  std::size_t span_ = 0;
  at::DimVector sizes_;
  at::DimVector strides_;
  at::ScalarType type_ = at::kFloat;
  bool is_conj_ = false;
  bool is_neg_ = false;
};

}  // namespace ferro::values
