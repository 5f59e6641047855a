// References that the parts of a DeviceMemory share; the device owns the objects.
#pragma once

#include "ferro/core/blocks/address_index.h"
#include "ferro/core/device/config.h"
#include "ferro/core/device/pool_table.h"
#include "ferro/core/ipc/imports.h"
#include "ferro/core/pages/graph_pages.h"
#include "ferro/core/pages/page_store.h"
#include "ferro/core/pages/stale_mappings.h"
#include "ferro/core/stats/device_counters.h"
#include "ferro/core/stats/stats.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/device_timeline.h"
#include "ferro/core/types/observer_slot.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ferro {

struct DeviceParts {
  const AllocatorConfig& config;
  Driver& driver;
  PageStore& store;
  StaleMappings& stale;
  DeviceTimeline& timeline;
  PoolTable& pools;
  GraphPages* const& graphs;  // null: none; under the climb lock
  DeviceStats& stats;
  Imports& imports;
  const CaptureCount& captures;
  const MemoryShortageCallback& on_shortage;
  ObserverSlot& observer;
  const AddressIndex& addresses;
  DeviceCounters& counters;  // under the climb lock

  std::size_t held_bytes() const { return store.counts().held * store.page_bytes(); }
  // True: the callback freed memory. It runs any code and may climb again, so it is not called
  // within another climb.
  bool ask_program_for_memory() const {
    if (observer.is_within_climb()) {
      return false;
    }
    const Driver::SessionBreak pause;
    return on_shortage && on_shortage();
  }
};

}  // namespace ferro
