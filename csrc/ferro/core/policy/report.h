// Why a request could not be served: the facts at that moment, and a verdict from them. Pure.
#pragma once

#include "ferro/driver/types.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ferro {

// What one stream holds of the default pool, in bytes.
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
  std::size_t device_free = 0;       // by the driver
  std::optional<std::size_t> limit;  // on `held` and `previous_held` together
  std::size_t headroom = 0;          // of `device_free`, left to others
  std::size_t held = 0;
  std::size_t live = 0;
  std::size_t pending = 0;       // freed, waiting for other streams
  std::size_t free_default = 0;  // free in the default pool: its cache
  std::size_t live_private = 0;  // part of `live` in private pools
  std::size_t free_private = 0;  // free in private pools
  std::size_t scratch = 0;       // of graphs that share it, by page
  // What the allocator before ours holds, and what of that the program uses.
  std::size_t previous_held = 0;
  std::size_t previous_live = 0;
  std::vector<StreamShare> streams;  // the largest first
  bool no_addresses = false;         // the driver refused a range of addresses
  // Bytes beyond which requests are refused at once, when that is why this one failed.
  std::optional<std::size_t> rejected_beyond;
};

enum class Verdict {
  kFragmentation,  // the free bytes of both allocators would do, if they were together
  kWaiting,        // so would those with the bytes that wait for other streams
  kPrivatePools,   // so would those with the free bytes of graph and user pools
  kLimit,          // the device has room, the limit does not
  kHeadroom,       // the device has room, which is left to others
  kOtherMemory,    // what is not ours on the device would have been enough
  kAddresses,      // the process has no range of addresses left
  kDriver,         // there was room, and the driver refused all the same
  kCapacity,       // live memory plus the request exceed the device
};

Verdict diagnose(const OutOfMemoryFacts& facts);
// As it stands in the message.
const char* name_of(Verdict verdict);

// What is missing after all that could still be created and all that is idle; 0: it was not for want
// of bytes.
std::size_t shortfall(const OutOfMemoryFacts& facts);
// What neither allocator of this process holds.
std::size_t other_memory(const OutOfMemoryFacts& facts);
// What to try next, as the end of a sentence that begins with "Try".
std::string advice(const OutOfMemoryFacts& facts);
// All sizes of one message are in one unit: GiB where the request has one at least, else MiB.
std::string size_text(std::size_t bytes, std::size_t request);

// A few sentences: the verdict, the shortfall, the numbers both rest on and the largest streams.
std::string explain(const OutOfMemoryFacts& facts);

}  // namespace ferro
