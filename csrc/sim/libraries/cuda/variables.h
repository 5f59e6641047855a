// For the runtime library, whose programs register variables of their code.
//
// In libcuda.so.1. Thread-safe.
#pragma once

#include <cstdint>

extern "C" {
// Code of the program has a variable at the beginning of this allocation: see
// machine/outside_kernel.h.
void ferro_sim_add_variable(std::uint64_t address);
}
