// The driver's handles of the streams that a thread allocates on, by PyTorch's ids for them.
//
// c10's stream object leads to the handle through a device guard and a table, some 60 ns; the
// handle behind an id never changes. Nor do the arenas that serve it. For one thread.
#pragma once

#include "ferro/driver/types.h"

#include <array>
#include <cstdint>

namespace ferro {

class Heap;

class KnownStreams {
 public:
  // Id 0 is the default stream, whose handle is 0 on every device.
  struct Slot {
    std::uint64_t key = 0;
    StreamId handle{};
    // Of the default pool, for small and for large blocks; null: not known yet, or requests need more.
    std::array<Heap*, 2> arenas{};
  };

  // The stream with that id is of that device if `slot.key == key`; otherwise the slot may be
  // overwritten.
  static constexpr std::uint64_t key_of(std::int64_t id, int device) {
    // Ids are small numbers or addresses; both leave the uppermost byte free.
    return static_cast<std::uint64_t>(id) ^ (static_cast<std::uint64_t>(device) << 56);
  }
  Slot& slot_of(std::uint64_t key) { return slots_[index_of(key)]; }

  // c10 has 32 streams of a priority and tells them apart in the bits from the sixth on; below are
  // the priority and one bit that is always set. The 32 have a slot each.
  static constexpr std::size_t index_of(std::uint64_t key) {
    return ((key >> 5) ^ (key << 2) ^ (key >> 56)) % kSlots;
  }

 private:
  static constexpr std::size_t kSlots = 64;
  std::array<Slot, kSlots> slots_;
};

}  // namespace ferro
