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

enum class Lifetime { kUnknown, kDies, kIsKept };

// Of one pool. Not thread-safe.
class CaptureLifetimes {
 public:
  void begin() { given_.clear(); }
  // What becomes of the next allocation until the end? Unknown beyond those of the capture before.
  Lifetime next() const {
    if (given_.size() >= lived_.size()) {
      return Lifetime::kUnknown;
    }
    return lived_[given_.size()] ? Lifetime::kIsKept : Lifetime::kDies;
  }
  void note(DevicePtr ptr) { given_.push_back(ptr); }
  // Learns from the capture that ends; `lives(DevicePtr)`: is a block there? O(n log n).
  template <typename Lives>
  void learn(Lives lives) {
    // Of several at one address only the last can be there still.
    std::map<DevicePtr, std::size_t> last;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      last[given_[i]] = i;
    }
    lived_.assign(given_.size(), false);
    for (const auto& [ptr, i] : last) {
      lived_[i] = lives(ptr);
    }
    given_.clear();
  }

 private:
  std::vector<DevicePtr> given_;  // by the capture that runs, in order
  std::vector<bool> lived_;       // of the capture before
};

}  // namespace ferro
