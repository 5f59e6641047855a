// The simulated GPU's control functions, found in the process at run time.
//
// Thread-safe. The extension links no library of the simulated GPU.
#pragma once

#include "sim/control.h"

namespace ferro::values {

struct Gpu {
  decltype(&ferro_sim_in_order) in_order;
  decltype(&ferro_sim_in_order_if_eager) in_order_if_eager;
  decltype(&ferro_sim_at_once) at_once;
  decltype(&ferro_sim_least_certainty) least_certainty;
  decltype(&ferro_sim_take_pieces) take_pieces;
  decltype(&ferro_sim_release) release;
  decltype(&ferro_sim_hold) hold;
  decltype(&ferro_sim_exchange) exchange;
  decltype(&ferro_sim_write) write;
  decltype(&ferro_sim_originate) originate;
  decltype(&ferro_sim_origins) origins;
  decltype(&ferro_sim_doubts) doubts;
  decltype(&ferro_sim_forget) forget;
  decltype(&ferro_sim_forget_in_replays) forget_in_replays;
  decltype(&ferro_sim_answer) answer;
  decltype(&ferro_sim_end_answer) end_answer;
  decltype(&ferro_sim_on_read_back) on_read_back;
  decltype(&ferro_sim_observe_outside) observe_outside;
  decltype(&ferro_sim_counts) counts;
  decltype(&ferro_sim_kernel) kernel;
  decltype(&ferro_sim_launch) launch;
  decltype(&ferro_sim_fail_assertion) fail_assertion;
};

// Throws std::runtime_error if the process has no simulated GPU. Comes before all other calls.
void find_gpu();

namespace detail {
extern Gpu found_gpu;
}  // namespace detail
inline const Gpu& gpu() { return detail::found_gpu; }

// PyTorch's current stream of a device, for the functions above.
void* current_stream(int device);

}  // namespace ferro::values
