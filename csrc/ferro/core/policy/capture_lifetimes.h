// Policy: which allocations of a capture will be alive at its end. Pure.
//
// Graphs that are captured into one pool are mostly the same function for other sizes: what they
// allocate comes in the same order. So an allocation is expected to live if the one with its number
// lived in the capture before. A wrong answer costs memory and nothing else.
#pragma once

#include "ferro/driver/types.h"

#include <cstddef>
#include <map>
#include <vector>

namespace ferro {

enum class Lifetime { kUnknown, kDies, kSurvives };

// Of one pool. Not thread-safe.
class CaptureLifetimes {
 public:
  // Predicted lifetime of an allocation, by its number in its capture, from 0. Unknown beyond those
  // of the capture before.
  Lifetime of(std::size_t number) const {
    if (number >= lived_.size()) {
      return Lifetime::kUnknown;
    }
    return lived_[number] ? Lifetime::kSurvives : Lifetime::kDies;
  }
  // Learns from the capture that ends. `given`: its allocations, in order, each with a `ptr`;
  // `lives(DevicePtr)`: is a block there? O(n log n).
  template <typename Given, typename Lives>
  void learn(const std::vector<Given>& given, Lives lives) {
    // Of several at one address only the last can be there still.
    std::map<DevicePtr, std::size_t> last;
    for (std::size_t i = 0; i < given.size(); ++i) {
      last[given[i].ptr] = i;
    }
    lived_.assign(given.size(), false);
    for (const auto& [ptr, i] : last) {
      lived_[i] = lives(ptr);
    }
  }

 private:
  std::vector<bool> lived_;  // of the capture before
};

}  // namespace ferro
