/* What observes threads outside of operators (`thread_counts.h`), in C.
 *
 * Launches of kernels there make unknown what the kernel may have written, as
 * machine/outside_kernel.h says. */
#pragma once

#include "sim/memory/contents.h"

#include <stddef.h>
#include <stdint.h>

struct ferro_sim_outside_observer {
  /* With the machine locked: finds the block of the program's allocator that contains an address.
   * Returns 0 if there is none. */
  int (*find_block)(uint64_t address, uint64_t* begin, size_t* bytes);
  /* The others are called without the machine's lock. Before each launch: */
  void (*prepare)(void);
  /* After the first launch of each name: */
  void (*add_kernel)(const char* name);
  /* After a small copy to the host of bytes that are not known: */
  void (*add_read)(enum ferro_sim_certainty least);
};
