/* What a thread has done, in C. */
#pragma once

#include "sim/memory/contents.h"

#include <stdint.h>

struct ferro_sim_thread_counts {
  /* The depth of the operators that the thread is in, which the code that computes values sets.
   * Kernels launched outside of operators are recorded by name. */
  uint64_t operators;
  /* The depth of calls in which the thread launches kernels outside of operators and notes itself what
   * they write through their arguments. */
  uint64_t noting;
  uint64_t launches; /* of kernels */
  /* Library operations that reported which of their results are known. */
  uint64_t transfers;
  /* Copies to the host that the thread submitted and that ran, by their least certain byte. Atomic:
   * other threads run them. */
  uint64_t reads[FERRO_SIM_KNOWN + 1];
};
