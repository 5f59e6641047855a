// The bytes that one private pool holds on a device, by PyTorch's classes.
//
// Written under the device's climb lock, read by any thread.
#pragma once

#include "ferro/core/stats/stats.h"

#include <array>
#include <cstdint>

namespace ferro {

struct PoolBytes {
  struct OfClass {
    Gauge held;
    RelaxedCounter peak;
  };
  std::array<OfClass, kStatClasses> of{};

  void change(StatClass cls, std::int64_t bytes) {
    for (OfClass* bytes_of : {&of[kAll], &of[cls]}) {
      if (bytes > 0) {
        bytes_of->held.increased.add(bytes);
        bytes_of->peak.raise_to(bytes_of->held.current());
      } else {
        bytes_of->held.decreased.add(-bytes);
      }
    }
  }
};

}  // namespace ferro
