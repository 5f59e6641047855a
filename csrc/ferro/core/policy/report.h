// Why a request failed: the facts at that moment, and the verdict that follows from them. Pure.
#pragma once

#include "ferro/driver/types.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ferro {

// The free bytes on handles that also hold live ones, by the pages of the handle. They cannot move.
using StrandedBytes = std::map<std::size_t, std::size_t>;

// The bytes that one stream holds of the default pool.
struct StreamShare {
  StreamId stream{};
  std::size_t held = 0;
  std::size_t live = 0;  // part of `held`
};

// All in bytes. held == live + pending + free, over the heaps of the default and private pools,
// plus scratch and idle.
struct OutOfMemoryFacts {
  DeviceId device = 0;
  std::size_t request = 0;
  std::size_t capacity = 0;          // of the device
  std::size_t device_free = 0;       // as the driver reports
  std::optional<std::size_t> limit;  // on `held` and `previous_held` together
  std::size_t headroom = 0;          // part of `device_free` that must stay free
  std::size_t held = 0;
  std::size_t live = 0;
  std::size_t pending = 0;       // freed, waiting for other streams
  std::size_t free_default = 0;  // free in the default pool: its cache
  StrandedBytes stranded;        // part of `free_default`
  std::size_t live_private = 0;  // part of `live` in private pools
  std::size_t free_private = 0;  // free in private pools
  std::size_t scratch = 0;       // shared by graphs; whole pages
  // Bytes that the previous allocator holds, and those of them that are live.
  std::size_t previous_held = 0;
  std::size_t previous_live = 0;
  // What `wake` would take again for memory that is asleep, which `live` does not count, and its
  // contents on the host.
  std::size_t asleep = 0;
  std::size_t saved = 0;
  std::vector<StreamShare> streams;  // the largest first
  bool no_addresses = false;         // the driver refused a range of addresses
  // The pool whose own allocator returned no memory; empty: none was asked.
  std::string pool_with_allocator;
  // The rejection limit, if this request failed because it exceeds it.
  std::optional<std::size_t> rejected_beyond;
};

enum class Verdict {
  kFragmentation,  // the free bytes of both allocators would suffice if they were contiguous
  kWaiting,        // they would suffice with the bytes that wait for other streams
  kPrivatePools,   // they would suffice with these and the free bytes of graph and user pools
  kLimit,          // the device has room, the limit does not
  kHeadroom,       // the device has room, but only within the headroom
  kOtherMemory,    // the memory that neither allocator holds would have sufficed
  kPoolAllocator,  // the pool's own allocator returned no memory
  kAddresses,      // the process has no range of addresses left
  kDriver,         // the driver refused although there was room
  kCapacity,       // live memory plus the request exceed the device
};
inline constexpr std::size_t kVerdicts = 10;

Verdict diagnose(const OutOfMemoryFacts& facts);
// The verdict's name in messages.
const char* name_of(Verdict verdict);

// The bytes still missing if all creatable and idle memory were used; 0 if the request did not fail
// for lack of bytes.
std::size_t shortfall(const OutOfMemoryFacts& facts);
// The bytes in use on the device that neither allocator of this process holds.
std::size_t other_memory(const OutOfMemoryFacts& facts);
// What to try next, as the end of a sentence that begins with "Try".
std::string advice(const OutOfMemoryFacts& facts);
// All sizes of one message have one unit: GiB if the request is at least 1 GiB, else MiB.
std::string size_text(std::size_t bytes, std::size_t request);

// A few sentences: the verdict, the shortfall, their numbers and the largest streams.
std::string explain(const OutOfMemoryFacts& facts);

}  // namespace ferro
