// From any address to the span that holds it. One per process: the devices of a process share one
// address space. For spans that fill multiples of kSpanAlignment, in two loads and without a lock;
// for others (segments, wherever the driver put them) in an ordered map behind a shared lock.
//
// Thread-safe. A span must outlive every lookup of an address that was handed out from it, which
// holds because a heap gives up a span only when no block of it is live.
#pragma once

#include "ferro/base/lazy_array.h"
#include "ferro/core/blocks/span.h"

#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace ferro {

class AddressIndex {
 public:
  // Addresses at or above this are refused by `add`; drivers hand out 47-bit addresses.
  static constexpr std::size_t kAddressBits = 48;

  AddressIndex() : slots_(kSlots) {}

  // False when the range is beyond what the index covers; nothing is added then.
  bool add(Span* span) {
    if (address_of(span->base()) + span->bytes() > kSlots * kSpanAlignment) {
      return false;
    }
    if (fills_slots(*span)) {
      set(span, span);
    } else {
      const std::unique_lock lock(others_mutex_);
      others_[span->base()] = span;
      has_others_.store(true, std::memory_order_release);
    }
    return true;
  }
  void remove(const Span* span) {
    if (fills_slots(*span)) {
      set(span, nullptr);
    } else {
      const std::unique_lock lock(others_mutex_);
      others_.erase(span->base());
    }
  }

  // Null for an address that is not in any span.
  Span* find(DevicePtr ptr) const {
    const std::size_t slot = address_of(ptr) / kSpanAlignment;
    Span* span = slot < kSlots ? slot_at(slot).load(std::memory_order_acquire) : nullptr;
    return span != nullptr || !has_others_.load(std::memory_order_acquire) ? span : find_other(ptr);
  }

 private:
  static constexpr std::size_t kSlots = (std::size_t{1} << kAddressBits) / kSpanAlignment;

  static bool fills_slots(const Span& span) {
    return is_aligned(address_of(span.base()), kSpanAlignment) &&
           is_aligned(span.bytes(), kSpanAlignment);
  }
  Span* find_other(DevicePtr ptr) const {
    const std::shared_lock lock(others_mutex_);
    auto after = others_.upper_bound(ptr);
    if (after == others_.begin()) {
      return nullptr;
    }
    Span* span = std::prev(after)->second;
    return ptr < span->base() + span->bytes() ? span : nullptr;
  }

  void set(const Span* range, Span* value) {
    const std::size_t first = address_of(range->base()) / kSpanAlignment;
    for (std::size_t i = 0; i < range->bytes() / kSpanAlignment; ++i) {
      slot_at(first + i).store(value, std::memory_order_release);
    }
  }

  std::atomic_ref<Span*> slot_at(std::size_t slot) const {
    return std::atomic_ref<Span*>(slots_[slot]);
  }

  mutable LazyArray<Span*> slots_;  // touched where there are spans alone
  std::atomic<bool> has_others_{false};
  mutable std::shared_mutex others_mutex_;
  std::map<DevicePtr, Span*> others_;  // by base; guarded by others_mutex_
};

}  // namespace ferro
