// All pages of one device, whoever uses them at the moment.
//
// One handle is behind one page or several. In a list of pages each entry is one page, and those of
// one handle stand side by side with the same value, so a list holds handles whole. A run is one
// handle for memory that other processes map; it counts as its pages and is never idle.
//
// Thread-safe. Invariants, in pages: held == idle + lent; held * page_bytes + charged_bytes <=
// limit_bytes at the time of every creation and charge; peak_held >= held. An idle page is mapped nowhere and no work on the device uses it, so any heap may take it
// without waiting; only while a request is served from pages that were lent to it
// (DeviceMemory::hand_over) these lie here too.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/handle_sizes.h"
#include "ferro/driver/driver.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferro {

// How many pages of a list, which is not empty, are behind its first handle.
std::size_t pages_of_handle(std::span<const PageHandle> pages);

// Handles are taken whole: the last one may bring more pages than were asked for, unless that is
// ruled out.
enum class Fit { kAtLeast, kExactly };

enum class [[nodiscard]] TakeResult{kOk, kOverLimit, kRejected, kOutOfMemory};

struct PageCounts {
  std::size_t held = 0;       // pages that exist
  std::size_t idle = 0;       // of those, ready to be taken
  std::size_t peak_held = 0;  // since the last reset
  std::size_t charged_bytes = 0;
  std::size_t peak_bytes = 0;  // of held pages and charged bytes together, since the last reset
  std::uint64_t created = 0;   // since construction
  std::uint64_t released = 0;
};

class PageStore {
 public:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};

  // `headroom`: bytes of the device that are left to others; what is created leaves them free.
  PageStore(Driver& driver, std::size_t page_bytes, const HandleRules& handles,
            std::size_t headroom = 0)
      : driver_(driver), page_bytes_(page_bytes), handles_(handles), headroom_(headroom) {}

  std::size_t page_bytes() const { return page_bytes_; }

  // Of one handle; a page where pages are larger than handles may be.
  std::size_t max_handle_pages() const {
    return std::max(handles_.max_bytes / page_bytes_, std::size_t{1});
  }

  // Appends `count` pages to `out`, idle ones first, those that came last before others, then new
  // ones. All or nothing, also when it throws DriverError. (A page that the driver created and then
  // refuses to release stays idle.) For an exact fit idle handles may go to the driver instead.
  TakeResult take(std::size_t count, Fit fit, std::vector<PageHandle>& out) FERRO_EXCLUDES(mutex_);
  // At least so many from idle pages alone. False and nothing taken when there are too few.
  bool take_idle(std::size_t count, std::vector<PageHandle>& out) FERRO_EXCLUDES(mutex_);
  // How many of them there are; those that the driver would not take back are none of them.
  std::size_t takeable() const FERRO_EXCLUDES(mutex_);
  // Gives pages back. They must be idle in the sense above.
  void put(std::span<const PageHandle> pages) FERRO_EXCLUDES(mutex_);
  // Returns idle pages to the driver, at most `count`; the number returned is the result. Stops at
  // the first handle that has more or that the driver refuses, which stays idle.
  std::size_t trim(std::size_t count) FERRO_EXCLUDES(mutex_);

  // One handle of `count` pages' size. `*out` is written on kOk only.
  TakeResult take_run(std::size_t count, PageHandle* out) FERRO_EXCLUDES(mutex_);
  // Returns a run, or a page that was lent, to the driver. One that the driver refuses is tried
  // again by `trim`, and counts as held and idle until then.
  void release_run(PageHandle handle, std::size_t count) FERRO_EXCLUDES(mutex_);
  // Counts memory of other forms (segments) against the same limits. Nothing is counted unless the
  // result is kOk. The peak follows with `settle`, when the memory was really had.
  TakeResult charge(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  void settle() FERRO_EXCLUDES(mutex_);
  void discharge(std::size_t bytes) FERRO_EXCLUDES(mutex_);

  // A second limit, for requests that shall fail at once instead of being waited for. Where the
  // first is exceeded too, that one counts.
  void set_rejection_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  // Pages beyond a lowered limit stay until they are trimmed.
  void set_limit(std::size_t bytes) FERRO_EXCLUDES(mutex_);
  std::size_t limit() const FERRO_EXCLUDES(mutex_);
  PageCounts counts() const FERRO_EXCLUDES(mutex_);
  void reset_peak() FERRO_EXCLUDES(mutex_);

 private:
  // Which limit, if any, forbids so many bytes more.
  TakeResult check_limits(std::size_t more) const FERRO_REQUIRES(mutex_);
  std::size_t free_on_device() const;
  std::size_t used_bytes() const FERRO_REQUIRES(mutex_) {
    return counts_.held * page_bytes_ + counts_.charged_bytes;
  }
  void raise_peaks() FERRO_REQUIRES(mutex_);

  struct Run {
    PageHandle handle;
    std::size_t pages;
  };
  bool try_release(const Run& run) FERRO_REQUIRES(mutex_);
  std::size_t release_down_to(std::size_t idle_left) FERRO_REQUIRES(mutex_);
  TakeResult create(std::size_t count) FERRO_REQUIRES(mutex_);
  std::size_t bring_to_end(std::size_t count) FERRO_REQUIRES(mutex_);
  std::size_t release_first(std::size_t handles) FERRO_REQUIRES(mutex_);
  void take_last(std::size_t count, std::vector<PageHandle>& out) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  const std::size_t page_bytes_;
  const HandleRules handles_;
  const std::size_t headroom_;
  mutable Mutex mutex_;
  std::vector<Run> idle_ FERRO_GUARDED_BY(mutex_);
  std::size_t idle_pages_ FERRO_GUARDED_BY(mutex_) = 0;
  std::vector<Run> refused_ FERRO_GUARDED_BY(mutex_);  // by the driver, which should take them back
  PageCounts counts_ FERRO_GUARDED_BY(mutex_);         // `idle` is not kept up to date
  std::size_t limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
  std::size_t rejection_limit_ FERRO_GUARDED_BY(mutex_) = kNoLimit;
};

}  // namespace ferro
