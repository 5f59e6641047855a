// Maps any address to its span in two loads, without a lock. One per process, because its devices
// share one address space. Spans begin and end at multiples of kSpanAlignment.
//
// Thread-safe. A span must outlive every lookup of an address that was handed out from it. This
// holds because a heap gives up a span only when it has no live block.
#pragma once

#include "ferro/base/lazy_array.h"
#include "ferro/core/blocks/span.h"

#include <atomic>
#include <cstddef>

namespace ferro {

class AddressIndex {
 public:
  // `add` refuses longer addresses; drivers reserve 47-bit ones.
  static constexpr std::size_t kAddressBits = 48;

  AddressIndex() : slots_(kSlots) {}

  // False when the range is beyond what the index covers; nothing is added then.
  bool add(Span* span) {
    if (address_of(span->base()) + span->bytes() > kSlots * kSpanAlignment) {
      return false;
    }
    set(span, span);
    reserved_bytes_.fetch_add(span->bytes(), std::memory_order_relaxed);
    return true;
  }
  void remove(const Span* span) {
    set(span, nullptr);
    reserved_bytes_.fetch_sub(span->bytes(), std::memory_order_relaxed);
  }
  // Of all spans; a recent value.
  std::size_t reserved_bytes() const { return reserved_bytes_.load(std::memory_order_relaxed); }

  // Null for an address that is not in any span.
  Span* find(DevicePtr ptr) const {
    const std::size_t slot = address_of(ptr) / kSpanAlignment;
    return slot < kSlots ? slot_at(slot).load(std::memory_order_acquire) : nullptr;
  }

 private:
  static constexpr std::size_t kSlots = (std::size_t{1} << kAddressBits) / kSpanAlignment;

  void set(const Span* range, Span* value) {
    const std::size_t first = address_of(range->base()) / kSpanAlignment;
    for (std::size_t i = 0; i < range->bytes() / kSpanAlignment; ++i) {
      slot_at(first + i).store(value, std::memory_order_release);
    }
  }

  std::atomic_ref<Span*> slot_at(std::size_t slot) const {
    return std::atomic_ref<Span*>(slots_[slot]);
  }

  mutable LazyArray<Span*> slots_;  // touched only where there are spans
  std::atomic<std::size_t> reserved_bytes_{0};
};

}  // namespace ferro
