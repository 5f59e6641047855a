// What sleeps, and what stays (device/sleeper.h).
#pragma once

#include "ferro/core/types/observer.h"
#include "ferro/core/types/pool_id.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>

namespace ferro {

struct SleepFilter {
  struct InUse {
    DevicePtr ptr{};
    std::size_t requested = 0;  // bytes
    BlockTag tag = 0;
    PoolId pool;
  };
  std::function<bool(const InUse&)> has;
  // Of pools: whether memory goes with it, whatever is in use, on which graphs replay but which is not
  // in use.
  std::function<bool(const PoolId&)> has_scratch;
  // Whether free memory goes to the driver too.
  enum class Free : std::uint8_t { kNo, kToo };
  Free free = Free::kNo;
  // Of what `has` accepts: whether its contents are kept. Null: all are.
  std::function<bool(const InUse&)> keeps = nullptr;
};

// Why a handle with memory of the filter does not sleep.
enum class StayReason : std::uint8_t {
  kBeside,    // other memory in use lies on it
  kExported,  // other processes may map it
  kPinned,    // by the program
  kShared,    // graphs use it at several addresses
  kRefused,   // the driver refused to unmap it
};
inline constexpr std::size_t kStayReasons = 5;

// Bytes of handles, by reason.
struct StayingBytes {
  std::array<std::size_t, kStayReasons> by_reason{};

  void add(StayReason why, std::size_t bytes) { by_reason[static_cast<std::size_t>(why)] += bytes; }
  std::size_t sum() const { return std::reduce(by_reason.begin(), by_reason.end()); }
};

}  // namespace ferro
