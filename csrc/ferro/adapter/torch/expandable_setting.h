// PyTorch's setting `expandable_segments`, from which other libraries learn the kind of memory that
// they get: mapped piecewise, or plain allocations of the driver.
//
// With the layout of pages it is on, which is the truth. If the program switched it off, in the
// environment or later, it stays off, and PyTorch's own allocator serves the requests. Without
// pages it is off.
#pragma once

#include "ferro/base/mutex.h"

#include <c10/core/AllocatorConfig.h>

#include <atomic>
#include <string>

namespace ferro {

inline bool memory_is_expandable() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
}
// The same, regardless of requests that another allocator now serves (OriginalSetting).
bool requests_are_expandable();

// Thread-safe, except while the program changes settings, which PyTorch does not order either.
class ExpandableSetting {
 public:
  // One for the process, like the settings.
  static ExpandableSetting& instance();

  // Sets it. Does not switch it on if the program has named it.
  void set(bool expandable) FERRO_EXCLUDES(mutex_);
  // Restores the value before the first `set`, unless the program has named it since.
  void restore() FERRO_EXCLUDES(mutex_);

  // While one exists, the setting is off if only `set` switched it on: for requests that another
  // allocator serves.
  class OriginalSetting {
   public:
    OriginalSetting() { instance().begin_original(); }
    ~OriginalSetting() { instance().end_original(); }
    OriginalSetting(const OriginalSetting&) = delete;
    OriginalSetting& operator=(const OriginalSetting&) = delete;
  };

 private:
  ExpandableSetting() = default;
  // Whether the program named it in the current settings.
  bool is_named_by_program() const FERRO_REQUIRES(mutex_);
  void write(bool expandable) FERRO_REQUIRES(mutex_);
  void begin_original() FERRO_EXCLUDES(mutex_);
  void end_original() FERRO_EXCLUDES(mutex_);
  friend bool requests_are_expandable();

  Mutex mutex_;
  bool is_set_ FERRO_GUARDED_BY(mutex_) = false;
  bool before_ FERRO_GUARDED_BY(mutex_) = false;
  int originals_ FERRO_GUARDED_BY(mutex_) = 0;    // number of `OriginalSetting`
  std::atomic<bool> is_set_aside_{false};         // an `OriginalSetting` exists and has changed it
  std::string written_ FERRO_GUARDED_BY(mutex_);  // the settings as last written here
  std::string of_program_ FERRO_GUARDED_BY(mutex_);  // the settings before that
};

}  // namespace ferro
