// The parts of a device that its heaps share.
#pragma once

#include "ferro/core/blocks/address_index.h"
#include "ferro/core/heap/heap_list.h"
#include "ferro/core/ipc/exports.h"
#include "ferro/core/pages/graph_pages.h"
#include "ferro/core/pages/page_store.h"
#include "ferro/core/pages/stale_mappings.h"
#include "ferro/core/stats/stats.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/device_timeline.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/ladder_steps.h"
#include "ferro/core/types/observer_slot.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ferro {

struct HeapContext {
  Driver& driver;
  PageStore& store;
  StaleMappings& stale;
  EventPool& events;
  DeviceTimeline& timeline;
  ExportTable& exports;
  AddressIndex& addresses;
  DeviceStats& stats;
  const CaptureCount& captures;
  ObserverSlot& observer;
  HeapList& with_free_pages;  // heaps that may have whole free pages
  HeapList& with_pending;     // heaps that may have pending frees
  // Bytes of the first span of large blocks, except in pools of graphs; 0: as of others.
  std::size_t first_span = 0;
  GraphPages* graphs = nullptr;  // null: no heap borrows, and pages of private pools stay
};

struct Request {
  std::size_t size = 0;       // bytes of the block: a positive multiple of kBlockAlignment
  std::size_t requested = 0;  // bytes that the program requested
  CallContext context = nullptr;
  LadderStep step = LadderStep::kGrow;  // the step that serves it
  // Whether a growth may make the request's stream wait for the last uses of the free memory that
  // it takes. The host never waits.
  bool stream_may_wait = false;
};

enum class FreeError { kNone, kNotLive };
struct [[nodiscard]] FreeResult {
  FreeError error = FreeError::kNone;
  std::size_t size = 0;  // bytes of the block
};

}  // namespace ferro
