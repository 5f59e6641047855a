// Replays a recorded allocation trace on the allocator's core over the simulated GPU, and prints
// one JSON object: peaks, the number of requests that each step of the ladder served, and driver
// calls.
//
//   replay TRACE PAGE_MIB [PASSES]
//
// After a pass, the blocks that the trace leaves live are freed.
//
// TRACE is an array of `Event`, written by replay.py. The pages of the simulated GPU have no bytes
// here: only the page table matters.
#include "ferro/adapter/allocator/block_size.h"
#include "ferro/core/device/device_memory.h"
#include "sim/control.h"
#include "sim/driver_api.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ferro {
namespace {

enum EventKind : std::uint8_t { kAllocate, kFreeRequested, kFreeCompleted };

struct Event {
  std::int64_t size;
  std::int32_t block;
  std::uint8_t kind;
  std::uint8_t stream;
  std::uint16_t deferred;  // of kFreeRequested: another stream still uses the block
};
static_assert(sizeof(Event) == 16);

// The simulated driver, but with events that complete when the block is free in the trace. The
// simulated streams never get work in this program. Not thread-safe.
class TracedEvents {
 public:
  static CudaApi table() {
    CudaApi api = sim::sim_cuda_api();
    api.event_record = [](CUevent event, CUstream) {
      records_[event] = {freeing_, 0};
      return CUDA_SUCCESS;
    };
    // The point comes after all uses of blocks freed before.
    api.ctx_record_event = [](CUcontext, CUevent event) {
      records_[event] = {kNothing, frees_};
      return CUDA_SUCCESS;
    };
    api.event_query = [](CUevent event) {
      return is_complete(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    api.event_synchronize = [](CUevent event) {
      host_waits_ += is_complete(event) ? 0 : 1;
      records_[event] = {kNothing, 0};
      return CUDA_SUCCESS;
    };
    return api;
  }

  // Events recorded until the next call guard `block`.
  static void begin_free(std::int32_t block) {
    freeing_ = block;
    used_.emplace(++frees_, block);
  }
  static void end_free() { freeing_ = kNothing; }
  static void complete(std::int32_t block) { completed_[static_cast<std::size_t>(block)] = true; }
  static void expect_blocks(std::size_t count) { completed_.assign(count, false); }
  static std::uint64_t host_waits() { return host_waits_; }

 private:
  static constexpr std::int32_t kNothing = -1;

  struct Record {
    std::int32_t block = kNothing;  // the block whose use comes before it
    std::uint64_t frees = 0;        // frees whose uses come before it
  };

  static bool is_complete(CUevent event) {
    const Record& record = records_[event];
    while (!used_.empty() && completed_[static_cast<std::size_t>(used_.begin()->second)]) {
      used_.erase(used_.begin());
    }
    return (record.block == kNothing || completed_[static_cast<std::size_t>(record.block)]) &&
           (used_.empty() || used_.begin()->first > record.frees);
  }

  static inline std::unordered_map<CUevent, Record> records_;
  // Blocks that other streams use, by the number of their free.
  static inline std::map<std::uint64_t, std::int32_t> used_;
  static inline std::uint64_t frees_ = 0;
  static inline std::vector<bool> completed_;
  static inline std::int32_t freeing_ = kNothing;
  static inline std::uint64_t host_waits_ = 0;
};

std::vector<Event> read_trace(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::size_t>(file.tellg());
  std::vector<Event> events(file ? bytes / sizeof(Event) : 0);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(events.data()),
            static_cast<std::streamsize>(events.size() * sizeof(Event)));
  return events;
}

// Streams by their numbers in the trace; number 0 is the default stream.
std::vector<StreamId> make_streams(const CudaApi& api, const std::vector<Event>& events) {
  std::uint8_t last = 1;
  for (const Event& event : events) {
    last = std::max(last, event.stream);
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  api.init(0);
  api.device_get(&device, 0);
  api.primary_ctx_retain(&context, device);
  api.ctx_set_current(context);
  std::vector<StreamId> streams{StreamId{0}};
  for (std::uint8_t number = 1; number <= last; ++number) {
    CUstream stream = nullptr;
    api.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    streams.push_back(StreamId{reinterpret_cast<std::uint64_t>(stream)});
  }
  return streams;
}

std::string simulated_calls() {
  std::string text(1 << 16, '\0');
  text.resize(ferro_sim_counters(text.data(), text.size()));
  return text;
}

// Modelled time of all calls so far.
double driver_microseconds() {
  const std::string calls = simulated_calls();
  constexpr std::string_view kName = "\"microseconds\": ";
  double sum = 0;
  for (std::size_t at = calls.find(kName); at != std::string::npos; at = calls.find(kName, at)) {
    at += kName.size();
    sum += std::strtod(calls.c_str() + at, nullptr);
  }
  return sum;
}

class Replay {
 public:
  Replay(const CudaApi& api, const AllocatorConfig& config, std::vector<StreamId> streams,
         std::size_t blocks)
      : memory_(api, 0, addresses_, config, {}), streams_(std::move(streams)), blocks_(blocks) {}

  // False if out of memory.
  bool apply(const Event& event) {
    const std::int32_t block = event.block + first_;
    DevicePtr& ptr = blocks_[static_cast<std::size_t>(block)];
    switch (event.kind) {
      case kAllocate: {
        // PyTorch sometimes requests 0 bytes, which takes a block of the smallest size.
        const std::size_t asked = event.size > 0 ? static_cast<std::size_t>(event.size) : 1;
        const Request request{block_size(asked, 0), asked};
        ptr = memory_.allocate(kDefaultPool, streams_[event.stream], request).ptr;
        if (const auto misses = misses_so_far(); misses != misses_) {
          misses_ = misses;
          const double spent = driver_microseconds();
          slowest_ = std::max(slowest_, spent - spent_);
          spent_ = spent;
        }
        return ptr != kNull;
      }
      case kFreeRequested: {
        Span& span = *addresses_.find(ptr);
        if (event.deferred != 0) {
          // Traces do not record the stream; they have at most two.
          span.heap()->record_stream(span, ptr, streams_[event.stream == 0 ? 1 : 0]);
        }
        TracedEvents::begin_free(block);
        const FreeResult result = span.heap()->free(span, std::exchange(ptr, kNull));
        TracedEvents::end_free();
        return result.error == FreeError::kNone;
      }
      default:
        TracedEvents::complete(block);
        return true;
    }
  }

  // Ends a pass of a trace with `events` events.
  void end_pass(std::size_t events) {
    for (std::size_t i = 0; i < events; ++i) {
      const std::int32_t block = first_ + static_cast<std::int32_t>(i);
      if (DevicePtr& ptr = blocks_[static_cast<std::size_t>(block)]; ptr != kNull) {
        apply({0, static_cast<std::int32_t>(i), kFreeRequested, 0, 0});
      }
      TracedEvents::complete(block);
    }
    first_ += static_cast<std::int32_t>(events);
  }

  DeviceMemory& memory() { return memory_; }
  // Driver time of the slowest allocation since the last call, in microseconds.
  double take_slowest() { return std::exchange(slowest_, 0); }

 private:
  std::uint64_t misses_so_far() {
    const LadderCounts ladder = memory_.report().counters().ladder;
    return std::accumulate(ladder.begin(), ladder.end(), std::uint64_t{0});
  }

  AddressIndex addresses_;
  DeviceMemory memory_;
  const std::vector<StreamId> streams_;
  std::vector<DevicePtr> blocks_;
  std::int32_t first_ = 0;  // number of the pass's first block
  std::uint64_t misses_ = 0;
  double spent_ = 0;
  double slowest_ = 0;
};

void print_results(DeviceMemory& memory, const std::string& calls_at_half, double slowest,
                   double seconds, std::size_t events) {
  const StatTable stats = memory.stats().read();
  const DeviceCounters counters = memory.report().counters();
  const PageCounts pages = memory.store().counts();
  std::cout << "{\"page_bytes\": " << memory.store().page_bytes()
            << ", \"peak_allocated\": " << stats[kBytes][kAll].peak
            << ", \"peak_active\": " << stats[kActiveBytes][kAll].peak
            << ", \"peak_reserved\": " << memory.report().reserved()[kAll].peak
            << ", \"pages_created\": " << pages.created
            << ", \"host_waits\": " << TracedEvents::host_waits()
            << ", \"unmapped_by_requests\": " << counters.unmapped_by_requests
            << ", \"slowest_microseconds\": " << slowest
            << ", \"nanoseconds_per_event\": " << seconds * 1e9 / static_cast<double>(events)
            << ", \"ladder\": {";
  for (std::size_t step = 0; step < kLadderSteps; ++step) {
    std::cout << (step == 0 ? "" : ", ") << '"' << name_of(static_cast<LadderStep>(step))
              << "\": " << counters.ladder[step];
  }
  std::cout << "}, \"calls_at_half\": " << calls_at_half << ", \"calls\": " << simulated_calls()
            << "}\n";
}

int run(const char* path, std::size_t page_mib, std::size_t passes) {
  const std::vector<Event> events = read_trace(path);
  if (events.empty()) {
    std::cerr << "replay: there is no trace in '" << path << "'\n";
    return 2;
  }
  if (ferro_sim_start("card=h100,backing=0") != 0) {
    std::cerr << "replay: " << ferro_sim_last_error() << '\n';
    return 1;
  }
  const CudaApi api = TracedEvents::table();
  TracedEvents::expect_blocks(events.size() * passes);
  AllocatorConfig config;
  config.page_bytes = page_mib * kMiB;
  // Never destroyed: the blocks that the trace leaves live would have to be freed first.
  Replay& replay = *new Replay(api, config, make_streams(api, events), events.size() * passes);
  ferro_sim_reset_counters();
  std::string calls_at_half;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < events.size() * passes; ++i) {
    if (i == events.size() * passes / 2) {
      calls_at_half = simulated_calls();
      replay.take_slowest();
    }
    if (!replay.apply(events[i % events.size()])) {
      std::cerr << "replay: event " << i << " failed: out of memory, or a wrong trace\n";
      return 1;
    }
    if ((i + 1) % events.size() == 0 && i + 1 != events.size() * passes) {
      replay.end_pass(events.size());
    }
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  replay.memory().report().check_invariants();
  print_results(replay.memory(), calls_at_half, replay.take_slowest(), spent.count(),
                events.size() * passes);
  return 0;
}

}  // namespace
}  // namespace ferro

int main(int argc, char** argv) {
  const auto number = [&](int i) {
    std::size_t value = 0;
    if (i < argc) {
      std::from_chars(argv[i], argv[i] + std::strlen(argv[i]), value);
    }
    return value;
  };
  const std::size_t page_mib = number(2);
  const std::size_t passes = argc > 3 ? number(3) : 1;
  if (page_mib == 0 || passes == 0) {
    std::cerr << "usage: replay TRACE PAGE_MIB [PASSES]\n";
    return 2;
  }
  try {
    return ferro::run(argv[1], page_mib, passes);
  } catch (const std::exception& error) {
    std::cerr << "replay: " << error.what() << '\n';
    return 1;
  }
}
