/* Control of the simulated GPU from the same process, in C, for tests and tools (ctypes too).
 *
 * Thread-safe. Functions that return int return 0, or -1 with a sentence in ferro_sim_last_error().
 * Functions that fill a buffer return the length of the whole text without its terminator; they
 * write at most `size` bytes and always terminate the text. They do not count as driver calls and run
 * no queued work. */
#pragma once

#include "sim/memory/contents.h"
#include "sim/memory/outside_observer.h"
#include "sim/memory/thread_counts.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces the machine. `settings`: "devices=2,memory=4GiB,mode=adversarial,seed=3"; null or empty:
 * the environment and defaults, which the settings refine. All driver handles become invalid. */
int ferro_sim_start(const char* settings);
/* Runs the queued work and removes the machine; the next driver call starts a new one. */
void ferro_sim_stop(void);
/* The calling thread's last error, or an empty text. */
const char* ferro_sim_last_error(void);

/* The setting `sharing` with which another process joins; empty without that setting. */
size_t ferro_sim_sharing(char* buffer, size_t size);

/* JSON: {"cuMemMap": {"calls": 3, "failures": 0, "bytes": 6291456, "microseconds": 1.8}, ...} */
size_t ferro_sim_counters(char* buffer, size_t size);
void ferro_sim_reset_counters(void);
/* Calls of one function, by its exported symbol. */
uint64_t ferro_sim_calls(const char* function);
/* JSON: devices, reservations, mappings, handles, streams, graphs, pending operations; with
 * `ranges` every mapped range too. */
size_t ferro_sim_report(int ranges, char* buffer, size_t size);

/* Fails calls of a function, named with or without its version suffix, with a CUresult.
 * `when`: "call" (the value-th from now, counted from 1), "after" (every one after the value-th),
 * "bytes" (every one of at least value bytes). */
int ferro_sim_add_fault(const char* function, const char* when, uint64_t value, int result);
void ferro_sim_clear_faults(void);

/* Runs everything that is queued, on all devices. */
void ferro_sim_drain(void);
uint64_t ferro_sim_pending(void);
/* Host threads that wait, inside a driver call, for work to be done. */
uint64_t ferro_sim_waiting_threads(void);
/* Physical bytes in use on a device, contexts and other processes that share it included; 0 for an
 * unknown device. */
uint64_t ferro_sim_allocated_bytes(int device);
/* Addresses that all devices have taken, mapped or not. */
uint64_t ferro_sim_reserved_address_bytes(void);

/* Reads or writes mapped device memory at once, regardless of streams and access rights. */
int ferro_sim_peek(uint64_t address, void* destination, size_t bytes);
int ferro_sim_poke(uint64_t address, const void* source, size_t bytes);

/* For code that computes the values of kernels in their place, below the program's operators.
 *
 * Calls `function(argument)` once after all earlier work of that stream; at once in eager time. It
 * runs with the machine locked, so it may call only the functions listed below for this. Returns 1,
 * without a call, while the stream is being captured, and -1 for an unknown stream. */
int ferro_sim_in_order(int device, void* stream, void (*function)(void*), void* argument);
/* The same in eager time; otherwise returns 2, without a call. Asks for the device's stream, which
 * takes longer than the rest, only if any stream is being captured. */
int ferro_sim_in_order_if_eager(int device, void* (*stream_of)(int device), void (*function)(void*),
                                void* argument);
/* Calls `function(argument)` at once, regardless of queued and captured work. */
void ferro_sim_at_once(void (*function)(void*), void* argument);
/* The following may be called only within such a function. They return -1 if the range is not
 * mapped.
 *
 * Returns the ferro_sim_certainty of the least certain byte. */
int ferro_sim_least_certainty(uint64_t address, size_t bytes);
/* Lists the contents of the range, in order, or of its beginning if they are more than `most` parts,
 * of which several may make one piece. Returns the number of pieces. If there are at most `room`,
 * fills them in. Each holds a reference, which the caller releases within such a function. */
int64_t ferro_sim_take_pieces(uint64_t address, size_t bytes, struct ferro_sim_piece* pieces,
                              size_t room, size_t most);
void ferro_sim_release(struct ferro_sim_contents* contents);
/* Makes the range hold these bytes of the contents. They are computed when they are read: then
 * `bytes` of the contents runs with the machine locked, on any thread. */
int ferro_sim_hold(uint64_t address, size_t bytes, struct ferro_sim_contents* contents,
                   size_t offset, enum ferro_sim_certainty certainty);
/* The same, but each byte keeps its mark. Returns 1, without an effect, if other processes may write to
 * the range. */
int ferro_sim_exchange(uint64_t address, size_t bytes, struct ferro_sim_contents* contents,
                       size_t offset);
/* Says where the bytes of the range come from, `offset` bytes into that origin, until the next
 * write. */
int ferro_sim_originate(uint64_t address, size_t bytes, const struct ferro_sim_origin* origin,
                        size_t offset);
/* Fills in the origins of the range, in order, or of its beginning if there are more than `room`.
 * Returns their number. Plain bytes without an origin get one that is derived from them.
 * `certainties` gets those of the range; the most certain byte may be missed behind the origins. */
int64_t ferro_sim_origins(uint64_t address, size_t bytes, struct ferro_sim_origin_piece* pieces,
                          size_t room, struct ferro_sim_certainties* certainties);
/* Fills in a byte for each element of the range: how far its least certain byte is from known (0 for
 * known, 2 for unknown). `bytes` is a multiple of `element_bytes`. Returns 1, and the bytes are
 * undefined, if more than `most` parts of the range are drawn or unknown. */
int ferro_sim_doubts(uint64_t address, size_t bytes, size_t element_bytes, uint8_t* doubts,
                     size_t most);
/* Writes bytes, and marks them. A null source writes zeros, or with `keep` only marks the bytes. */
int ferro_sim_write(uint64_t address, const void* source, size_t bytes,
                    enum ferro_sim_certainty certainty, int keep);
/* Makes the range unknown, with that origin. Zeros it unless `keep`. */
int ferro_sim_forget(uint64_t address, size_t bytes, int keep,
                     const struct ferro_sim_origin* origin, size_t offset);
/* The same for what a captured operator writes: makes the range unknown now and in each replay, after
 * the last work that the stream's capture recorded, unless that work writes the range. Each replay
 * gives another identity. Of each `pitch` bytes only the first `width` ones are written; those between
 * them become unknown too only if all of the range is; a width of 0: all bytes are written. */
int ferro_sim_forget_in_replays(int device, void* stream, uint64_t address, size_t bytes,
                                const struct ferro_sim_origin* origin, size_t offset, size_t width,
                                size_t pitch);
/* An assertion of a kernel failed: the device's context has that error from now on, unless it has one. */
void ferro_sim_fail_assertion(int device);
/* Between these calls every copy of at most 8 bytes to the host that this thread submits delivers the
 * low bytes of this value. One of up to 16 bytes delivers 1 and the value: a search that found this
 * position. Calls may be nested; the innermost value counts. */
void ferro_sim_answer(uint64_t value);
void ferro_sim_end_answer(void);
/* Sets the function that is called, with the machine locked, when a thread within an operator
 * submits a copy of at most 16 bytes from this address to the host, and has no answer for it. If it
 * returns 1, they are the result of a kernel: the copy delivers zeros and counts as a read of unknown
 * bytes. The function survives a new machine. */
void ferro_sim_on_read_back(int (*is_result)(uint64_t address));
/* Sets what observes threads outside of operators, or removes it if it is null. It survives a new
 * machine. */
void ferro_sim_observe_outside(const struct ferro_sim_outside_observer* observer);
/* A kernel of this name, without effects, in the current context; null if there is none. Its name may
 * decide how long it takes (streams/durations.h). */
void* ferro_sim_kernel(const char* name);
/* Enqueues such a kernel in the current context. Returns the driver's result. */
int ferro_sim_launch(void* kernel, void* stream, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned threads);
/* The counts of the calling thread, valid in it until it ends. */
struct ferro_sim_thread_counts* ferro_sim_counts(void);
/* The recorded names, one per line. */
size_t ferro_sim_kernels(char* buffer, size_t size);

/* Starts or stops the record of calls, which is text with one call per line. */
void ferro_sim_set_trace(int on);
size_t ferro_sim_trace(char* buffer, size_t size);

#ifdef __cplusplus
}
#endif
