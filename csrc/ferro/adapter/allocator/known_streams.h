// Caches the driver's handles of the streams on which a thread allocates, by PyTorch's ids.
//
// c10 finds a handle through a device guard and a table, in about 60 ns. The handle of an id never
// changes, nor do the arenas that serve it. For one thread.
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
    // The default pool's, for small and large blocks; null if unknown or if requests need more.
    std::array<Heap*, 2> arenas{};
  };

  // The slot has the stream if `slot.key == key`; otherwise the caller may overwrite it.
  static constexpr std::uint64_t key_of(std::int64_t id, int device) {
    // Ids are small numbers or addresses; both leave the uppermost byte free.
    return static_cast<std::uint64_t>(id) ^ (static_cast<std::uint64_t>(device) << 56);
  }
  Slot& slot_of(std::uint64_t key) { return slots_[index_of(key)]; }

  // c10 has 32 streams per priority. The bits from the sixth on distinguish them; the lower bits
  // are the priority and one bit that is always set. Each of the 32 streams has its own slot.
  static constexpr std::size_t index_of(std::uint64_t key) {
    return ((key >> 5) ^ (key << 2) ^ (key >> 56)) % kSlots;
  }

 private:
  static constexpr std::size_t kSlots = 64;
  std::array<Slot, kSlots> slots_;
};

}  // namespace ferro
