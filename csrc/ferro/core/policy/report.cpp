#include "ferro/core/policy/report.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace ferro {
namespace {

std::size_t minus(std::size_t a, std::size_t b) { return a > b ? a - b : 0; }

// What could still be created, by device and limit.
std::size_t creatable(const OutOfMemoryFacts& facts) {
  const std::size_t free = minus(facts.device_free, facts.headroom);
  return facts.limit ? std::min(free, minus(*facts.limit, facts.held)) : free;
}

std::size_t other_memory(const OutOfMemoryFacts& facts) {
  return minus(facts.capacity, facts.device_free + facts.held);
}

std::string size_text(std::size_t bytes) {
  std::array<char, 32> text{};
  if (bytes >= kGiB) {
    std::snprintf(text.data(), text.size(), "%.2f GiB",
                  static_cast<double>(bytes) / static_cast<double>(kGiB));
  } else {
    std::snprintf(text.data(), text.size(), "%.2f MiB",
                  static_cast<double>(bytes) / static_cast<double>(kMiB));
  }
  return text.data();
}

std::string verdict_text(const OutOfMemoryFacts& facts) {
  const std::string stranded = size_text(facts.free_default);
  const std::string pending = size_text(facts.pending);
  switch (diagnose(facts)) {
    case Verdict::kFragmentation:
      return "FRAGMENTATION: " + stranded +
             " are free in pages that also hold live blocks, enough if they were together.";
    case Verdict::kWaiting:
      return "WAITING: " + pending +
             " were freed but wait for other streams (record_stream) or for a running capture.";
    case Verdict::kPrivatePools:
      return "PRIVATE POOLS: " + size_text(facts.free_private) +
             " are free in pools of CUDA graphs or MemPools, which keep them while they are held.";
    case Verdict::kLimit:
      return "LIMIT: the memory limit of " + size_text(*facts.limit) +
             " is reached while the device has " + size_text(facts.device_free) +
             " free; raise it with torch.cuda.set_per_process_memory_fraction or memory_limit_mb.";
    case Verdict::kHeadroom:
      return "HEADROOM: of the " + size_text(facts.device_free) + " that the device has free " +
             size_text(facts.headroom) + " are left to others; lower headroom_mb to use them.";
    case Verdict::kOtherMemory:
      return "OTHER MEMORY: " + size_text(other_memory(facts)) +
             " of the device are held by other processes, libraries or the CUDA context.";
    case Verdict::kAddresses:
      return "ADDRESSES: the process has no range of addresses left for " +
             size_text(facts.request) +
             "; 128 TiB are all that it has for the host and its devices together.";
    case Verdict::kDriver:
      return "DRIVER: it refused memory although it reports " + size_text(facts.device_free) +
             " free.";
    case Verdict::kCapacity:
      break;
  }
  return "CAPACITY: live memory and this request exceed the device; no arrangement would fit.";
}

// Of whole pages that live bytes on their handles strand: why these did not move.
std::string beside_live_text(const OutOfMemoryFacts& facts) {
  if (facts.beside_live == 0) {
    return "";
  }
  const std::string text = " Of what is free " + size_text(facts.beside_live) +
                           " are whole pages on handles that also carry live bytes";
  switch (facts.live_moves) {
    case LiveMoves::kOff:
      return text +
             "; move_live:true lets these move, where no other thread gives the device work "
             "while one waits for memory.";
    case LiveMoves::kCapturing:
      return text + ", which do not move while a capture runs.";
    case LiveMoves::kPeers:
      return text + ", which do not move where other devices have access.";
    case LiveMoves::kAllowed:
      break;
  }
  return text + ": too few, or without room for a copy of the live ones.";
}

}  // namespace

Verdict diagnose(const OutOfMemoryFacts& facts) {
  if (facts.no_addresses) {
    return Verdict::kAddresses;
  }
  // What the ladder gathered in vain is room too.
  const std::size_t idle =
      minus(facts.held, facts.live + facts.pending + facts.free_default + facts.free_private);
  const std::size_t deficit = minus(facts.request, creatable(facts) + idle);
  if (deficit == 0) {
    return Verdict::kDriver;
  }
  if (facts.free_default >= deficit) {
    return Verdict::kFragmentation;
  }
  if (facts.free_default + facts.pending >= deficit) {
    return Verdict::kWaiting;
  }
  if (facts.free_default + facts.pending + facts.free_private >= deficit) {
    return Verdict::kPrivatePools;
  }
  if (facts.limit && facts.device_free >= facts.request + facts.headroom) {
    return Verdict::kLimit;
  }
  if (facts.device_free >= facts.request && facts.headroom != 0) {
    return Verdict::kHeadroom;
  }
  // The context and the libraries of this process always hold a little.
  constexpr std::size_t kOwnShare = kGiB;
  if (minus(other_memory(facts), kOwnShare) >= deficit) {
    return Verdict::kOtherMemory;
  }
  return Verdict::kCapacity;
}

std::string explain(const OutOfMemoryFacts& facts) {
  return "ferro_alloc: verdict = " + verdict_text(facts) + " Live " + size_text(facts.live) +
         " (private pools " + size_text(facts.live_private) + "), waiting for streams " +
         size_text(facts.pending) + ", free but stranded " + size_text(facts.free_default) +
         ", free in private pools " + size_text(facts.free_private) + ", not ours " +
         size_text(other_memory(facts)) + "." + beside_live_text(facts);
}

}  // namespace ferro
