#include "sim/libraries/cuda/variables.h"

#include "sim/machine/machine.h"
#include "sim/machine/outside_kernel.h"

extern "C" __attribute__((visibility("default"))) void ferro_sim_add_variable(
    std::uint64_t address) {
  const std::lock_guard guard(ferro::sim::Machine::lock());
  add_variable(ferro::sim::Machine::current(), address);
}
