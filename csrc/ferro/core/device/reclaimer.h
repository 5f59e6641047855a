// What is free goes back: pages to the store and the driver, addresses to the process.
//
// Belongs to the climb lock of the device. The host may wait; no heap's lock is held then.
#pragma once

#include "ferro/core/device/device_parts.h"

#include <cstddef>
#include <vector>

namespace ferro {

class Reclaimer {
 public:
  static constexpr std::size_t kAllPages = ~std::size_t{0};

  explicit Reclaimer(const DeviceParts& parts) : parts_(parts) {}

  // Everything of the default pool and of pools that nobody holds that is free and may leave, but
  // for what the settings want to keep. Pools and addresses that are empty then go too.
  void empty_cache(const CallContext& context);
  // The same for one pool, if nobody holds it.
  void empty_pool(const PoolId& id, const CallContext& context);
  // Pages of one heap, to the driver; how many.
  std::size_t empty_heap(Heap& heap, std::size_t pages, const CallContext& context);

  // Pages of one heap for another one's request: the host waits, and they are in the store.
  std::size_t release_pages_of(Heap& heap, std::size_t pages, const CallContext& context);
  // Removes what is left of mappings whose work is over, so that handles may go to the driver.
  std::size_t trim(std::size_t pages);

  // Addresses that nothing is behind, of all heaps; how many bytes.
  std::size_t release_addresses();

 private:
  void collect_graphs();
  std::size_t surplus_pages(const std::vector<Heap*>& givers);

  const DeviceParts& parts_;
};

}  // namespace ferro
