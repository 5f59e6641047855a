// How the memory of a device is managed: settings, and what the allocator asks of the program.
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
#include <vector>

namespace ferro {

// Whose memory serves requests.
enum class Layout : std::uint8_t {
  kPages,     // that of this allocator
  kSegments,  // that of PyTorch's own; also where a device has no virtual memory management
};

// In which order the graphs of a pool may replay that is in no exclusive group, where what they keep
// is to stay as it is.
enum class GraphOrder : std::uint8_t {
  kCaptured,  // that of their captures; a later graph keeps results where an earlier one has scratch
  kAny,       // the pool is a group of its own (graph_memory.h), which takes more memory
};

struct AllocatorConfig {
  std::size_t page_bytes = 2 * kMiB;               // multiple of the driver's granularity
  HandleRules handles = {};                        // of new memory
  std::size_t memory_limit = PageStore::kNoLimit;  // bytes per device
  std::size_t headroom = 0;    // bytes of the device that are left free for others
  std::size_t idle_bytes = 0;  // that `empty_cache` keeps
  // Of all requests, and of those to pools. Who sends requests here sees to them.
  Layout layout = Layout::kPages;
  Layout graph_layout = Layout::kPages;
  GraphOrder graph_order = GraphOrder::kCaptured;
  // How much more than its peak of live bytes the program may hold before requests wait for other
  // streams, as a share of that peak (stream_waits.h); negative: it grows as long as it can.
  double in_flight_share = 0.3;
  // May work that was launched here wait for another process that waits for work still to come?
  // Then requests grow while they can, as if the share were negative. Null: no.
  std::function<bool()> has_rank_messages = nullptr;
  TransferRules transfers = {};  // of pages between streams, rather than growing
  // Does the stream live as long as the process? Asked on every miss, in the thread that has it.
  // A stream that may be gone is touched for its own requests alone, because a driver that is asked
  // about one crashes. Null: all do.
  std::function<bool(DeviceId, StreamId)> stream_lasts = nullptr;
  // Announced captures of all devices; null: of this one alone.
  std::shared_ptr<CaptureCount> captures_of_process = nullptr;
  // By the bytes of the device: those beyond which a request is refused at once, before anything is
  // given back or waited for. Asked on every miss; null: no such limit.
  std::function<std::size_t(std::size_t)> rejection_limit = nullptr;

  // May a stream wait for another one while memory could grow? Not if the program forbids it, nor while
  // the program's work may wait for another rank.
  bool may_wait_rather_than_grow() const {
    return in_flight_share >= 0 && !(has_rank_messages && has_rank_messages());
  }
};

// Called when memory is short and no lock of a heap is held. True: something was freed.
using MemoryShortageCallback = std::function<bool()>;

}  // namespace ferro
