// Returns free memory: pages to the store and the driver, addresses to the process.
//
// The device's climb lock guards it. The host may wait, without holding a heap's lock.
#pragma once

#include "ferro/core/device/device_parts.h"

#include <cstddef>
#include <vector>

namespace ferro {

class Reclaimer {
 public:
  static constexpr std::size_t kAllPages = ~std::size_t{0};

  explicit Reclaimer(const DeviceParts& parts) : parts_(parts) {}

  // Returns all free memory that may leave the default pool and pools that are not held, except
  // what the settings keep. Then removes empty pools and spans.
  void empty_cache(const CallContext& context);
  // The same for the whole device: also what the settings keep, and free memory of pools that are
  // held, unless graphs replay on it.
  void empty_all();
  // The same for all pools that are not held.
  void empty_gone_pools();
  // The same for one pool that is not held.
  void empty_pool(const PoolId& id, const CallContext& context);
  // The same without a wait: does nothing while the device works or a capture runs.
  void empty_idle_pool(const PoolId& id);
  // Returns pages of one heap to the driver. The result is their number.
  std::size_t empty_heap(Heap& heap, std::size_t pages, const CallContext& context);

  // Moves pages of one heap to the store, for another heap's request; the host waits for their
  // work. The result is their number.
  std::size_t release_pages_of(Heap& heap, std::size_t pages, const CallContext& context);
  // Removes stale mappings whose epochs have passed, then returns pages of the store to the driver.
  // The result is their number.
  std::size_t trim(std::size_t pages);

  // Releases the empty spans of all heaps. The result is their bytes.
  std::size_t release_addresses();

 private:
  void empty(const std::vector<Heap*>& givers, std::size_t surplus, const CallContext& context);
  void wait_for_frees(const std::vector<Heap*>& heaps);
  std::size_t surplus_pages(const std::vector<Heap*>& givers);

  const DeviceParts& parts_;
};

}  // namespace ferro
