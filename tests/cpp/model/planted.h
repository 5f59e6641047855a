// What is planted in a run of the model, and what it counts.
#pragma once

namespace ferro::testing {

// What the allocator, or a launch, does wrong on purpose, so that a test can show that it is found.
enum class Planted {
  kNone,
  kNoWait,       // who evicts scratch does not wait for the device
  kPastTheGate,  // a launch that is under way does not keep scratch from being lent
  kUnasked,      // a launch takes nothing back
};

// What happened to the scratch of idle graphs.
struct LendingCounts {
  unsigned lent = 0;     // steps after which more of it was lent
  unsigned back = 0;     // launches that took some of it back
  unsigned refused = 0;  // launches
};

}  // namespace ferro::testing
