// The handles of one device that no heap has, and how many pages there are in all.
//
// A handle of the store is in one of three states:
//  cached   mapped nowhere, used by no work: anybody may have it, or the driver gets it back;
//  leaving  its old mapping is still there, and the epoch in which it was freed may not have passed.
//           A request gets it when that epoch has passed, when the handle left the requester's own
//           arena, or when the requester's stream may wait for the epoch;
//  retired  shared with another process once: it goes to the driver as soon as its mapping is gone.
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

// Handles are taken whole: the last one may bring more pages than were asked for, unless that is
// ruled out.
enum class Fit { kAtLeast, kExactly };

enum class [[nodiscard]] TakeResult{kOk, kTooFew, kOverLimit, kRejected, kOutOfMemory};

struct PageCounts {
  std::size_t held = 0;       // pages that exist
  std::size_t idle = 0;       // of those, in the store
  std::size_t peak_held = 0;  // since the last reset
  std::uint64_t created = 0;  // since construction
  std::uint64_t released = 0;
  std::uint64_t transferred = 0;  // that a heap took after another had left them
};

// A handle with the mapping that it has left, if that may still be there.
struct StoredHandle {
  HandleRange range;
  StaleMappingRef mapping;

  // When its memory was freed, if that matters still.
  Epoch freed() const { return is_mapped() ? mapping->freed : kUnused; }
  bool is_mapped() const {
    return mapping != nullptr && !mapping->removed.load(std::memory_order_acquire);
  }
};

// What is asked of the store.
struct PageRequest {
  std::size_t pages = 0;
  Fit fit = Fit::kAtLeast;
  // Pages of a handle at most; for an exact fit.
  std::size_t largest = ~std::size_t{0};
  bool may_create = false;
  // Handles that left this arena do not count as transferred when they come back.
  const MappingOwner* taker = nullptr;
  // The requester's stream comes behind this epoch already.
  Epoch behind = kUnused;
  // This stream may wait for handles whose epochs have not passed; the host does not. None: only
  // what has passed.
  std::optional<StreamId> waits = std::nullopt;
  // The same for handles that left the taker.
  std::optional<StreamId> waits_for_own = std::nullopt;
};

class PageStore {
 public:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};

  // `headroom`: bytes of the device that are left to others; what is created leaves them free.
  PageStore(Driver& driver, DeviceTimeline& timeline, std::size_t page_bytes,
            const HandleRules& handles, std::size_t headroom = 0)
      : driver_(driver),
        timeline_(timeline),
        page_bytes_(page_bytes),
        handles_(handles),
        headroom_(headroom) {}

  std::size_t page_bytes() const { return page_bytes_; }

  // Of one handle; a page where pages are larger than handles may be.
  std::size_t max_handle_pages() const {
    return std::max(handles_.max_bytes / page_bytes_, std::size_t{1});
  }

  // Appends handles to `out`: cached ones first, those that came last before others, then such as
  // leave, then new ones. All or nothing, also when it throws DriverError. (What the driver created
  // and then refuses to release stays cached.) For an exact fit cached handles may go to the driver
  // instead. kTooFew: there are fewer, and none may be created.
  TakeResult take(const PageRequest& request, std::vector<StoredHandle>& out)
      FERRO_EXCLUDES(mutex_);
  // How many pages `take` would find for that request without creating any; at most `request.pages`.
  std::size_t available(const PageRequest& request) FERRO_EXCLUDES(mutex_);
  // The first epoch that handles of the store still wait for, for the host to wait for it; none: no
  // handle waits.
  std::optional<Epoch> epoch_to_wait_for() FERRO_EXCLUDES(mutex_);
  // Gives handles back, mapped nowhere or with what `StoredHandle` says.
  void put(std::span<const StoredHandle> handles) FERRO_EXCLUDES(mutex_);
  // Handles that are mapped nowhere, and no work uses them.
  void put_cached(std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);
  // Returns to the driver what was shared and is mapped nowhere, and cached handles, at most `count`
  // pages of these. Stops at the first handle that has more or that the driver refuses, which stays
  // cached. The result is how many pages went.
  std::size_t trim(std::size_t count) FERRO_EXCLUDES(mutex_);

  // One handle of `count` pages. `*out` is written on kOk only.
  TakeResult create_one(std::size_t count, PageHandle* out) FERRO_EXCLUDES(mutex_);
  // To the driver, as soon as its mapping is gone: `trim` does it, and every `take`.
  void retire(StoredHandle handle) FERRO_EXCLUDES(mutex_);

  // A second limit, for requests that shall fail at once instead of being waited for. Where the
  // first is exceeded too, that one counts.
  void set_rejection_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  // For what is created from now on.
  void set_headroom(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  // Pages beyond a lowered limit stay until they are trimmed.
  void set_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  std::size_t limit() const FERRO_EXCLUDES(mutex_);
  PageCounts counts() const FERRO_EXCLUDES(mutex_);
  void reset_peak() FERRO_EXCLUDES(mutex_);

 private:
  // Which limit, if any, forbids so many bytes more.
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
  std::size_t bring_to_end(std::size_t count, std::size_t largest) FERRO_REQUIRES(mutex_);
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
  std::vector<StoredHandle> retired_ FERRO_GUARDED_BY(mutex_);  // also what the driver refuses
  PageCounts counts_ FERRO_GUARDED_BY(mutex_);                  // `idle` is not kept up to date
  std::size_t limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
  std::size_t rejection_limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
};

}  // namespace ferro
