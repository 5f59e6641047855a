// The handles of one device that belong to no heap, and the number of all pages.
//
// A handle of the store is in one of three states:
//  cached   mapped nowhere, used by no work: any request may take it, or it returns to the driver;
//  leaving  its stale mapping still exists, and the epoch in which it was freed may not have
//           passed. A request gets it when that epoch has passed, when the handle left the
//           requester's own arena, or when the requester's stream may wait for the epoch;
//  retired  once shared with another process: it goes to the driver when its mapping is removed.
//
// Thread-safe. Invariants, in pages: held == cached + leaving + retired + mapped by heaps;
// held * page_bytes <= limit_bytes at the time of every creation;
// peak_held >= held.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/pages/stale_mappings.h"
#include "ferro/core/policy/handle_sizes.h"
#include "ferro/core/types/handle_range.h"
#include "ferro/driver/driver.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ferro {

// Handles are taken whole, so with kAtLeast the last one may bring more pages than requested.
enum class Fit { kAtLeast, kExactly };

enum class [[nodiscard]] TakeResult{kOk, kTooFew, kOverLimit, kRejected, kOutOfMemory};

struct PageCounts {
  std::size_t held = 0;       // pages that exist
  std::size_t idle = 0;       // of those, in the store
  std::size_t peak_held = 0;  // since the last reset
  std::uint64_t created = 0;  // since construction
  std::uint64_t released = 0;
  std::uint64_t transferred = 0;  // taken by another heap than the one that gave them
};

// A handle with its stale mapping, if that may still exist.
struct StoredHandle {
  HandleRange range;
  StaleMappingRef mapping;

  // The epoch of the free; kUnused if its mapping is removed.
  Epoch freed() const { return is_mapped() ? mapping->freed : kUnused; }
  bool is_mapped() const {
    return mapping != nullptr && !mapping->removed.load(std::memory_order_acquire);
  }
};

// A request for pages of the store.
struct PageRequest {
  std::size_t pages = 0;
  Fit fit = Fit::kAtLeast;
  // The most pages of one handle; for an exact fit.
  std::size_t largest = ~std::size_t{0};
  bool may_create = false;
  // Handles that left this arena do not count as transferred when they come back.
  const MappingOwner* taker = nullptr;
  // The requester's stream already waits for this epoch.
  Epoch behind = kUnused;
  // This stream may wait for handles whose epochs have not passed; the host does not. None: only
  // handles whose epochs have passed.
  std::optional<StreamId> waits = std::nullopt;
  // The same for handles that left the taker's arena.
  std::optional<StreamId> waits_for_own = std::nullopt;
};

class PageStore {
 public:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};

  // `headroom`: bytes of the device that new handles leave free.
  PageStore(Driver& driver, DeviceTimeline& timeline, std::size_t page_bytes,
            const HandleRules& handles, std::size_t headroom = 0)
      : driver_(driver),
        timeline_(timeline),
        page_bytes_(page_bytes),
        handles_(handles),
        headroom_(headroom) {}

  std::size_t page_bytes() const { return page_bytes_; }

  // The most pages of one handle; 1 if a page is larger than the largest handle.
  std::size_t max_handle_pages() const {
    return std::max(handles_.max_bytes / page_bytes_, std::size_t{1});
  }

  // Appends handles to `out`: cached ones first, the most recent before older ones, then leaving
  // ones, then new ones. All or nothing, also when it throws DriverError; new handles that the
  // driver refuses to release stay cached. For an exact fit, cached handles may go to the driver to
  // make room. kTooFew if there are fewer pages and none may be created.
  TakeResult take(const PageRequest& request, std::vector<StoredHandle>& out)
      FERRO_EXCLUDES(mutex_);
  // The pages that `take` would find for the request without creating any; at most `request.pages`.
  std::size_t available(const PageRequest& request) FERRO_EXCLUDES(mutex_);
  // The earliest epoch, not yet passed, of a mapped handle in the store, for the host to wait for;
  // none if there is no such handle.
  std::optional<Epoch> epoch_to_wait_for() FERRO_EXCLUDES(mutex_);
  // Puts handles back, with their stale mappings, if any.
  void put(std::span<const StoredHandle> handles) FERRO_EXCLUDES(mutex_);
  // Puts back handles that are mapped nowhere and that no work uses.
  void put_cached(std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);
  // Releases such handles to the driver; those that it refuses become cached.
  void release(std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);
  // Releases to the driver retired handles that are mapped nowhere, and cached handles with at most
  // `count` pages in all. Stops at the first cached handle that has more or that the driver
  // refuses; it stays cached. Returns the number of pages released.
  std::size_t trim(std::size_t count) FERRO_EXCLUDES(mutex_);

  // Creates one handle of `count` pages. Writes `*out` only on kOk.
  TakeResult create_one(std::size_t count, PageHandle* out) FERRO_EXCLUDES(mutex_);
  // Releases the handle once its mapping is removed: now, or in a later `trim` or `take`.
  void retire(StoredHandle handle) FERRO_EXCLUDES(mutex_);

  // A second limit, beyond which requests fail at once, without a wait. If a request exceeds the
  // first limit too, that one counts.
  void set_rejection_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  // Applies to later creations.
  void set_headroom(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  std::size_t headroom() const FERRO_EXCLUDES(mutex_);
  // Pages beyond a lowered limit stay until they are trimmed.
  void set_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  std::size_t limit() const FERRO_EXCLUDES(mutex_);
  PageCounts counts() const FERRO_EXCLUDES(mutex_);
  void reset_peak() FERRO_EXCLUDES(mutex_);

 private:
  // The limit, if any, that forbids `more` additional bytes.
  TakeResult check_limits(std::size_t more) const FERRO_REQUIRES(mutex_);
  std::size_t free_on_device() const FERRO_REQUIRES(mutex_);
  std::size_t used_bytes() const FERRO_REQUIRES(mutex_) { return counts_.held * page_bytes_; }
  void raise_peaks() FERRO_REQUIRES(mutex_);

  void complete_unmapped() FERRO_REQUIRES(mutex_);
  std::vector<std::size_t> choose_leaving(const PageRequest& request, std::size_t wanted,
                                          std::size_t* pages) FERRO_REQUIRES(mutex_);
  void take_leaving(std::span<const std::size_t> chosen, std::vector<StoredHandle>& out)
      FERRO_REQUIRES(mutex_);
  bool try_release(const HandleRange& handle) FERRO_REQUIRES(mutex_);
  void release_down_to(std::size_t cached_left) FERRO_REQUIRES(mutex_);
  TakeResult create(std::size_t count, std::size_t largest) FERRO_REQUIRES(mutex_);
  std::size_t move_to_end(std::size_t count, std::size_t largest) FERRO_REQUIRES(mutex_);
  std::size_t release_first(std::size_t handles) FERRO_REQUIRES(mutex_);
  void take_last(std::size_t count, std::vector<StoredHandle>& out) FERRO_REQUIRES(mutex_);

  bool is_ready(const StoredHandle& handle, const PageRequest& request) const;
  static std::optional<StreamId> waiter_for(const StoredHandle& handle, const PageRequest& request);

  Driver& driver_;
  DeviceTimeline& timeline_;
  const std::size_t page_bytes_;
  const HandleRules handles_;
  mutable Mutex mutex_;
  std::size_t headroom_ FERRO_GUARDED_BY(mutex_);
  std::vector<HandleRange> cached_ FERRO_GUARDED_BY(mutex_);
  std::size_t cached_pages_ FERRO_GUARDED_BY(mutex_) = 0;
  std::vector<StoredHandle> leaving_ FERRO_GUARDED_BY(mutex_);  // in the order in which they came
  std::vector<StoredHandle> retired_ FERRO_GUARDED_BY(mutex_);  // also those the driver refused
  PageCounts counts_ FERRO_GUARDED_BY(mutex_);                  // `idle` is not kept up to date
  std::size_t limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
  std::size_t rejection_limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
};

}  // namespace ferro
