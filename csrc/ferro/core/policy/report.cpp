#include "ferro/core/policy/report.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace ferro {
namespace {

std::size_t minus(std::size_t a, std::size_t b) { return a > b ? a - b : 0; }

// The bytes that the device and the limit still allow.
std::size_t creatable(const OutOfMemoryFacts& facts) {
  const std::size_t free = minus(facts.device_free, facts.headroom);
  return facts.limit ? std::min(free, minus(*facts.limit, facts.held + facts.previous_held)) : free;
}

std::size_t previous_cached(const OutOfMemoryFacts& facts) {
  return minus(facts.previous_held, facts.previous_live);
}

// Formats sizes in the unit of the request.
class SizeText {
 public:
  explicit SizeText(const OutOfMemoryFacts& facts) : request_(facts.request) {}
  std::string operator()(std::size_t bytes) const { return size_text(bytes, request_); }

 private:
  std::size_t request_;
};

std::string verdict_text(const OutOfMemoryFacts& facts) {
  const SizeText text(facts);
  switch (diagnose(facts)) {
    case Verdict::kFragmentation:
      return previous_cached(facts) == 0
                 ? text(facts.free_default) +
                       " are free in pages that also hold live blocks. Together with the free "
                       "pages they would suffice."
                 : text(facts.free_default) + " are free in pages that also hold live blocks and " +
                       text(previous_cached(facts)) +
                       " in the allocator before ferro_alloc. Together with the free pages they "
                       "would suffice.";
    case Verdict::kWaiting:
      return text(facts.pending) +
             " were freed but wait for other streams (record_stream) or for a running capture.";
    case Verdict::kPrivatePools:
      return text(facts.free_private + facts.scratch) +
             " are free in pools of CUDA graphs or MemPools, which keep them while they are held.";
    case Verdict::kLimit:
      return "the memory limit of " + text(*facts.limit) + " is reached while the device has " +
             text(facts.device_free) + " free.";
    case Verdict::kHeadroom:
      return "of the " + text(facts.device_free) + " that the device has free " +
             text(facts.headroom) + " are left to others.";
    case Verdict::kOtherMemory:
      return text(other_memory(facts)) +
             " of the device are held by other processes, libraries or the CUDA context.";
    case Verdict::kPoolAllocator:
      return "the allocator of the pool " + facts.pool_with_allocator +
             " returned no memory. ferro_alloc does not allocate in this pool.";
    case Verdict::kAddresses:
      return "the process has no range of addresses left for " + text(facts.request) +
             "; the host and all devices share 128 TiB.";
    case Verdict::kDriver:
      return "the driver refused memory although it reports " + text(facts.device_free) + " free.";
    case Verdict::kCapacity:
      break;
  }
  return "live memory and this request exceed the device; no arrangement would fit.";
}

// Empty without stranded bytes.
std::string stranded_text(const StrandedBytes& stranded, const SizeText& size) {
  std::size_t sum = 0;
  std::string parts;
  for (const auto& [pages, bytes] : stranded) {
    sum += bytes;
    parts += (parts.empty() ? "" : ", ") + size(bytes) + " on handles of " + std::to_string(pages) +
             (pages == 1 ? " page" : " pages");
  }
  return sum == 0 ? "" : " Of the cache " + size(sum) + " lie beside live bytes: " + parts + ".";
}

std::string stream_name(StreamId stream) {
  if (stream == StreamId{}) {
    return "the default stream";
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "stream 0x%llx", static_cast<unsigned long long>(stream));
  return text.data();
}

// Empty for a single stream, whose shares are the sums.
std::string streams_text(const OutOfMemoryFacts& facts) {
  constexpr std::size_t kNamed = 4;
  if (facts.streams.size() < 2) {
    return "";
  }
  const SizeText size(facts);
  std::string text = " Of the default pool";
  for (std::size_t i = 0; i < std::min(facts.streams.size(), kNamed); ++i) {
    const StreamShare& share = facts.streams[i];
    text += (i == 0 ? " " : ", ") + stream_name(share.stream) + " holds " + size(share.held) +
            " (" + size(share.live) + " live)";
  }
  const std::size_t more = minus(facts.streams.size(), kNamed);
  return text + (more == 0 ? "." : ", and " + std::to_string(more) + " more streams the rest.");
}

}  // namespace

Verdict diagnose(const OutOfMemoryFacts& facts) {
  if (!facts.pool_with_allocator.empty()) {
    return Verdict::kPoolAllocator;
  }
  if (facts.no_addresses) {
    return Verdict::kAddresses;
  }
  const std::size_t deficit = shortfall(facts);
  if (deficit == 0) {
    return Verdict::kDriver;
  }
  const std::size_t cached = facts.free_default + previous_cached(facts);
  if (cached >= deficit) {
    return Verdict::kFragmentation;
  }
  if (cached + facts.pending >= deficit) {
    return Verdict::kWaiting;
  }
  if (cached + facts.pending + facts.free_private + facts.scratch >= deficit) {
    return Verdict::kPrivatePools;
  }
  if (facts.limit && facts.device_free >= facts.request + facts.headroom) {
    return Verdict::kLimit;
  }
  if (facts.device_free >= facts.request && facts.headroom != 0) {
    return Verdict::kHeadroom;
  }
  // The context and the libraries of this process always hold some memory.
  constexpr std::size_t kOwnShare = kGiB;
  if (minus(other_memory(facts), kOwnShare) >= deficit) {
    return Verdict::kOtherMemory;
  }
  return Verdict::kCapacity;
}

const char* name_of(Verdict verdict) {
  constexpr std::array<const char*, kVerdicts> kNames = {
      "FRAGMENTATION", "WAITING",        "PRIVATE POOLS", "LIMIT",  "HEADROOM",
      "OTHER MEMORY",  "POOL ALLOCATOR", "ADDRESSES",     "DRIVER", "CAPACITY"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::size_t shortfall(const OutOfMemoryFacts& facts) {
  if (!facts.pool_with_allocator.empty()) {
    return 0;
  }
  // Idle memory, which the ladder gathered before it failed, is room too.
  const std::size_t idle = minus(facts.held, facts.live + facts.pending + facts.free_default +
                                                 facts.free_private + facts.scratch);
  return minus(facts.request, creatable(facts) + idle);
}

std::size_t other_memory(const OutOfMemoryFacts& facts) {
  return minus(facts.capacity, facts.device_free + facts.held + facts.previous_held);
}

std::string advice(const OutOfMemoryFacts& facts) {
  constexpr std::array<const char*, kVerdicts> kAdvice = {
      "to allocate long-lived tensors before short-lived ones, or in a MemPool of their own",
      "to end the capture, or to let the other streams finish first, as torch.cuda.synchronize() "
      "does",
      "to drop graphs and MemPools that are done, or to let graphs share a pool",
      "to raise the limit with torch.cuda.set_per_process_memory_fraction or memory_limit_mb",
      "to lower headroom_mb",
      "to end other processes on the device, which nvidia-smi lists",
      "to give the pool's allocator more memory, or to allocate outside of the pool",
      "to drop pools and streams that are done, and torch.cuda.empty_cache()",
      "again; if it fails again, the system's log may show what the driver lacks",
      "a smaller batch, recomputed or offloaded activations, or more devices"};
  const Verdict verdict = diagnose(facts);
  return verdict == Verdict::kFragmentation && previous_cached(facts) > facts.free_default
             ? "to install ferro_alloc before the first tensor is made"
             : kAdvice[static_cast<std::size_t>(verdict)];
}

std::string size_text(std::size_t bytes, std::size_t request) {
  const bool large = request >= kGiB;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), large ? "%.2f GiB" : "%.2f MiB",
                static_cast<double>(bytes) / static_cast<double>(large ? kGiB : kMiB));
  return text.data();
}

std::string explain(const OutOfMemoryFacts& facts) {
  const SizeText size(facts);
  const std::size_t missing = shortfall(facts);
  std::string text = std::string("ferro_alloc: verdict = ") + name_of(diagnose(facts)) + ": " +
                     verdict_text(facts);
  if (missing != 0) {
    text += " Short of " + size(missing) + ".";
  }
  text += " Live " + size(facts.live) + " (private pools " + size(facts.live_private) +
          "), waiting for streams " + size(facts.pending) + ", cached " + size(facts.free_default) +
          ", cached in private pools " + size(facts.free_private) + ", not PyTorch's " +
          size(other_memory(facts)) + ".";
  if (facts.asleep != 0) {
    text += " Asleep " + size(facts.asleep) + ", which wake() will take again, with " +
            size(facts.saved) + " of contents on the host.";
  }
  return text + stranded_text(facts.stranded, size) + streams_text(facts);
}

}  // namespace ferro
