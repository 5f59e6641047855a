/* Bytes that parts of memory hold by reference, in C: computed at the first read, and then
 * constant.
 *
 * Guarded by the machine's lock. Code that makes contents derives a structure from this one. It holds
 * a reference, and so does each part of memory with the contents. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ferro_sim_contents;

/* How sure bytes are, in increasing order. */
enum ferro_sim_certainty {
  FERRO_SIM_UNKNOWN = 0, /* arbitrary: zeros, or valid positions */
  FERRO_SIM_DRAWN = 1,   /* follow from choices or numbers drawn at random, and from known bytes */
  FERRO_SIM_KNOWN = 2
};

/* Those of the least and of the most certain of some bytes. */
struct ferro_sim_certainties {
  enum ferro_sim_certainty least;
  enum ferro_sim_certainty most;
};

struct ferro_sim_contents_kind {
  /* The bytes, valid while a reference is held; null if they cannot be computed. */
  const void* (*bytes)(struct ferro_sim_contents* self);
  /* Called when the last reference is gone. */
  void (*destroy)(struct ferro_sim_contents* self);
  /* How many bytes are computed, so that `bytes` costs nothing; 0 if they are not. Null: always 0. */
  size_t (*computed)(struct ferro_sim_contents* self);
};

enum { FERRO_SIM_OF_MASKS = 1, FERRO_SIM_OF_KNOWN = 3 }; /* both have the first one's bit */

/* What is known about contents without their bytes. */
struct ferro_sim_origin {
  /* Equal for equal contents, also in another run or process whose operators were equal. 0: it is
   * derived from the bytes. */
  uint64_t identity;
  /* Of unknown numbers: how sure it is which of them are infinite. */
  enum ferro_sim_certainty infinities;
  /* Some were set to minus infinity or to a number that stands for it. */
  uint8_t has_lows;
  /* All are 0 or more, and those that nothing set to 0 are more. */
  uint8_t is_positive;
  /* FERRO_SIM_OF_MASKS: those that are unknown are masks of unknown numbers, or follow from such masks
   * and from known data alone, and so their contents agree with each other. FERRO_SIM_OF_KNOWN: none
   * is unknown. 0: neither is so, or is said. */
  uint8_t of_masks;
  /* Nothing wrote these bytes since their memory was allocated. */
  uint8_t is_unset;
};

struct ferro_sim_contents {
  const struct ferro_sim_contents_kind* kind;
  uint64_t references;
  struct ferro_sim_origin origin;
};

/* Some bytes of contents, from an offset on; null contents mean zeros. */
struct ferro_sim_piece {
  struct ferro_sim_contents* contents;
  size_t offset;
  size_t bytes;
};

/* The origin of some bytes. Their identity is that of the contents with their offset there. */
struct ferro_sim_origin_piece {
  struct ferro_sim_origin origin;
  size_t offset;
  size_t bytes;
};

#ifdef __cplusplus
}
#endif
