// What one private pool holds of a device's memory, by PyTorch's classes.
//
// Written under the slow lock of the device, read by anybody.
#pragma once

#include "ferro/core/stats/stats.h"

#include <array>
#include <cstdint>

namespace ferro {

struct PoolBytes {
  std::array<Gauge, kStatClasses> of{};

  void change(StatClass cls, std::int64_t bytes) {
    for (Gauge* gauge : {&of[kAll], &of[cls]}) {
      if (bytes > 0) {
        gauge->increase(bytes);
      } else {
        gauge->decrease(-bytes);
      }
    }
  }
};

}  // namespace ferro
