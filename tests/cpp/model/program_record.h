// What a random program did, as numbers that a later run must reach again.
//
// Some numbers have names, so that a change of policy shows what it costs. Everything else that a
// user or the driver can see goes into digests, which only tell that something is different.
#pragma once

#include "ferro/core/device/device_memory.h"
#include "ferro/core/types/observer.h"
#include "ferro/graph/graph_memory.h"
#include "support/sim_gpu.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace ferro::testing {

// FNV-1a over 64-bit values; their order matters.
class Digest {
 public:
  template <typename... Values>
  void add(const Values&... values) {
    (add_one(static_cast<std::uint64_t>(values)), ...);
  }
  std::string text() const {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x",
                  static_cast<unsigned>(value_ ^ (value_ >> 32)));
    return digits.data();
  }

 private:
  void add_one(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) {
      value_ = (value_ ^ (value & 0xff)) * 1099511628211U;
    }
  }
  std::uint64_t value_ = 14695981039346656037U;
};

// Collects the record of one program. Addresses and handles of streams differ from run to run, so
// it takes distances and the numbers that the model gives to pools and streams.
class ProgramRecord final : public MemoryObserver {
 public:
  using NumberOfPool = std::function<unsigned(const PoolId&)>;
  using NumberOfStream = std::function<unsigned(StreamId)>;

  ProgramRecord(NumberOfPool pool, NumberOfStream stream)
      : pool_(std::move(pool)), stream_(std::move(stream)) {}

  void on_event(const EventFacts& event) noexcept override {
    if (event.tag != nullptr) {
      *event.tag = event.what == MemoryEvent::kAllocate ? next_tag_++ % kTags : BlockTag{0};
    }
    events_.add(event.what, event.size, event.block_bytes, pool_(event.pool), stream_(event.stream),
                event.range.pages_moved, number_of(event.context));
    for (const char* at = event.range.reason; at != nullptr && *at != '\0'; ++at) {
      events_.add(*at);
    }
  }

  void add_failure(const OutOfMemoryFacts& facts) {
    ++failures_;
    reports_.add(diagnose(facts), facts.request, facts.capacity, facts.device_free,
                 facts.limit.value_or(0), facts.headroom, facts.held, facts.live, facts.pending,
                 facts.free_default, facts.live_private, facts.free_private, facts.scratch,
                 facts.asleep, facts.saved, facts.no_addresses, facts.rejected_beyond.value_or(0));
    for (const auto& [pages, bytes] : facts.stranded) {
      reports_.add(pages, bytes);
    }
    for (const StreamShare& share : facts.streams) {
      reports_.add(stream_(share.stream), share.held, share.live);
    }
  }

  void add_sleep(const SleepOutcome& outcome) {
    reports_.add(outcome.result, outcome.bytes, outcome.saved_bytes, outcome.missing_bytes);
    for (const std::size_t bytes : outcome.staying.by_reason) {
      reports_.add(bytes);
    }
  }

  // Everything that can be asked for at this moment.
  void look(DeviceMemory& device, GraphMemory& graphs, std::span<const PoolId> pools) {
    std::uint64_t end = 0;
    for (const SegmentView& segment : device.report().segments(nullptr)) {
      const std::uint64_t begin = address_of(segment.ptr);
      layout_.add(end == 0 ? 0 : begin - end, segment.size, stream_(segment.stream),
                  pool_(segment.pool), segment.kind, number_of(segment.context));
      for (const BlockView& block : segment.blocks) {
        layout_.add(block.size, block.requested, block.state, block.tag, number_of(block.context));
      }
      end = begin + segment.size;
    }
    const DeviceView view = device.report().view();
    reports_.add(view.free_blocks, view.free_bytes, view.hits, view.late_hits, view.misses,
                 view.pages_moved, view.asleep_live_bytes, device.report().held_bytes(),
                 device.report().largest_free_block(), device.report().stranded_bytes());
    for (const auto& [pages, bytes] : device.report().stranded()) {
      reports_.add(pages, bytes);
    }
    const DeviceCounters counters = device.report().counters();
    reports_.add(counters.retries, counters.out_of_memory, counters.rejected,
                 counters.synchronisations, counters.pages_created, counters.pages_released,
                 counters.pages_transferred, counters.unmapped_by_requests, counters.unmaps_refused,
                 counters.late_hits);
    for (std::size_t step = 0; step < kLadderSteps; ++step) {
      reports_.add(counters.ladder[step], counters.ladder_costs[step].pages);
    }
    for (const auto& row : device.stats().read()) {
      add(row);
    }
    add(device.report().reserved());
    for (const auto& [id, bytes] : device.report().reserved_by_pool()) {
      reports_.add(pool_(id));
      add(bytes);
    }
    for_each_kind(device.driver().calls(),
                  [this](const char*, std::uint64_t calls) { reports_.add(calls); });
    const PageCounts pages = device.store().counts();
    reports_.add(pages.held, pages.idle, pages.peak_held, pages.created, pages.released,
                 pages.transferred);
    for (const auto& [tag, bytes] : device.report().reserved_by_tag()) {
      reports_.add(tag, bytes);
    }
    const GroupBytes together = graphs.bytes_if_joined(pools);
    reports_.add(together.set, together.scratch);
    for (const PoolId& id : pools) {
      const bool is_member = graphs.group_of(id).has_value();
      const GroupBytes shared = graphs.bytes_of(graphs.group_of(id).value_or(GroupId{0}));
      const GroupBytes alone = graphs.bytes_if_joined({{id}});
      reports_.add(device.report().live_blocks(id).size(), is_member, shared.set, shared.scratch,
                   alone.set, alone.scratch, graphs.shared_bytes(id), graphs.is_of_tree(id));
    }
  }

  // After the last `look`.
  std::string text(DeviceMemory& device) const {
    const PageCounts pages = device.store().counts();
    const DeviceView view = device.report().view();
    std::string text;
    const auto add = [&text](const char* name, std::uint64_t value) {
      text += std::string(" ") + name + "=" + std::to_string(value);
    };
    add("created", pages.created);
    add("released", pages.released);
    add("peak", pages.peak_held);
    add("moved", view.pages_moved);
    add("transferred", pages.transferred);
    add("hits", view.hits);
    add("late_hits", view.late_hits);
    add("misses", view.misses);
    add("failures", failures_);
    Digest calls;
#define FERRO_TESTING_COUNT(member, symbol) calls.add(SimGpu::calls(#symbol));
    FERRO_CUDA_API(FERRO_TESTING_COUNT)
    FERRO_CUDA_API_OPTIONAL(FERRO_TESTING_COUNT)
#undef FERRO_TESTING_COUNT
    for (const auto& [name, symbol] : {std::pair{"maps", "cuMemMap"},
                                       {"unmaps", "cuMemUnmap"},
                                       {"records", "cuEventRecord"},
                                       {"queries", "cuEventQuery"},
                                       {"waits", "cuEventSynchronize"},
                                       {"stream_waits", "cuStreamWaitEvent"}}) {
      add(name, SimGpu::calls(symbol));
    }
    return text + " calls=" + calls.text() + " layout=" + layout_.text() +
           " events=" + events_.text() + " reports=" + reports_.text();
  }

 private:
  void add(std::span<const StatValue> values) {
    for (const StatValue& value : values) {
      reports_.add(value.current, value.peak, value.increased, value.decreased);
    }
  }

  // Of the call; the model numbers them.
  static unsigned number_of(const CallContext& context) {
    return context != nullptr ? *static_cast<const unsigned*>(context.get()) : 0;
  }

  static constexpr BlockTag kTags = 3;

  NumberOfPool pool_;
  NumberOfStream stream_;
  Digest layout_, events_, reports_;
  std::uint64_t failures_ = 0;
  BlockTag next_tag_ = 0;
};

}  // namespace ferro::testing
