// Launches of kernels, and copies to the host, that may come from outside of the program's operators.
//
// Objects of these classes live in the frame of the driver function, around the machine's lock: the
// observer prepares before the lock is taken, and learns the names of new kernels and what was read
// after it is released. Within an operator, and without an observer, they cost two branches.
#pragma once

#include "ferro/base/bytes.h"
#include "sim/driver/api_call.h"
#include "sim/memory/outside_observer.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace ferro::sim {

class OutsideLaunch {
 public:
  OutsideLaunch();
  ~OutsideLaunch();
  OutsideLaunch(const OutsideLaunch&) = delete;
  OutsideLaunch& operator=(const OutsideLaunch&) = delete;

  ferro_sim_thread_counts& thread() const { return thread_; }
  // From outside of operators. Other launches need no call of the functions below.
  bool is_outside() const { return thread_.operators == 0; }
  // Both with the machine locked. Records the name of a kernel.
  void record(Machine& machine, CUfunction kernel);
  // After the launch: makes what the kernel may have written unknown, in the order of the stream; in
  // a capture now, and after each replay of `node`.
  void forget(Machine& machine, CUfunction kernel, CUstream stream, GraphNode* node,
              void* const* arguments, void* const* extra) const;

 private:
  ferro_sim_thread_counts& thread_;
  const ferro_sim_outside_observer* const observer_;  // of a launch from outside
  std::string fresh_;                                 // the name of a kernel that is new
};

// A copy of this many bytes or fewer may tell the program numbers, which it has no type for. Larger
// ones move tensors.
inline constexpr std::size_t kMaxReadBytes = 64 * kKiB;

class OutsideRead {
 public:
  explicit OutsideRead(std::size_t bytes);
  ~OutsideRead();
  OutsideRead(const OutsideRead&) = delete;
  OutsideRead& operator=(const OutsideRead&) = delete;

 private:
  std::uint64_t reads(ferro_sim_certainty least) const;

  ferro_sim_thread_counts& thread_;
  const ferro_sim_outside_observer* const observer_;  // of such a copy from outside
  const std::uint64_t unknown_;                       // reads of the thread before it
  const std::uint64_t drawn_;
};

// Null, as at first: launches from outside make nothing unknown. Survives a new machine.
void set_outside_observer(const ferro_sim_outside_observer* observer);

}  // namespace ferro::sim
