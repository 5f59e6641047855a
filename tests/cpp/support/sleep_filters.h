// What sleeps in tests.
#pragma once

#include "ferro/core/types/sleep.h"

namespace ferro::testing {

inline SleepFilter all_memory() {
  return {[](const SleepFilter::InUse&) { return true; }, [](const PoolId&) { return true; }};
}

}  // namespace ferro::testing
