// The settings of a device's memory, and the allocator's callbacks into the program.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/core/pages/page_store.h"
#include "ferro/core/policy/handle_sizes.h"
#include "ferro/core/policy/transfers.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace ferro {

// The order in which the graphs of a pool may replay without overwriting the results that they
// keep, if the pool is in no exclusive group.
enum class GraphOrder : std::uint8_t {
  kCaptured,  // the order of capture; a later graph may keep results in an earlier one's scratch
  kAny,       // any: the pool is a group by itself (graph_memory.h), which takes more memory
};

struct AllocatorConfig {
  std::size_t page_bytes = 2 * kMiB;               // multiple of the driver's granularity
  HandleRules handles = {};                        // of new memory
  std::size_t memory_limit = PageStore::kNoLimit;  // bytes per device
  std::size_t headroom = 0;    // bytes of the device that the allocator leaves free
  std::size_t idle_bytes = 0;  // that `empty_cache` keeps
  GraphOrder graph_order = GraphOrder::kCaptured;
  // The memory that the program may hold beyond its peak of live bytes before requests wait for
  // other streams, as a share of that peak (stream_waits.h). Negative: no such limit.
  double in_flight_share = 0.3;
  // Whether launched work may wait for another process that waits for work not yet launched here.
  // Requests then grow while they can, as with a negative share. Null: never.
  std::function<bool()> has_rank_messages = nullptr;
  TransferRules transfers = {};  // of pages between streams, instead of growing
  // Whether the stream lives as long as the process. Called on every miss, in the requesting
  // thread. A stream that may no longer exist is used only for its own requests, because the driver
  // crashes on a query about a destroyed stream. Null: all streams last.
  std::function<bool(DeviceId, StreamId)> stream_lasts = nullptr;
  // Copies some streams of all devices but `own` that are sure to exist, to query whether they
  // capture, and returns their number. Called before a point is recorded. Null: no streams.
  std::function<std::size_t(DeviceId own, std::span<StreamId> to)> streams_of_others = nullptr;
  // Announced captures of all devices; null: only this device's count.
  std::shared_ptr<CaptureCount> captures_of_process = nullptr;
  // Maps the device's bytes to the limit beyond which a request is refused at once, before any
  // release or wait. Called on every miss; null: no such limit.
  std::function<std::size_t(std::size_t)> rejection_limit = nullptr;

  // Whether a stream may wait for another one while memory could grow: not if the program forbids
  // it, or while its work may wait for another rank.
  bool may_wait_before_growth() const {
    return in_flight_share >= 0 && !(has_rank_messages && has_rank_messages());
  }
};

// Called when memory is short and no lock of a heap is held. Returns true if it freed memory.
using MemoryShortageCallback = std::function<bool()>;

}  // namespace ferro
