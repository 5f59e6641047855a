// PyTorch's setting `expandable_segments`, which is how other libraries learn what memory they get:
// mapped piecewise, or in plain allocations of the driver.
//
// With pages in force it is on, so that they are told the truth. Where a program switched it off, in
// the environment or since, its word counts: PyTorch's own allocator serves its requests. Without pages
// it is off.
#pragma once

#include "ferro/base/mutex.h"

#include <c10/core/AllocatorConfig.h>

#include <atomic>
#include <string>

namespace ferro {

inline bool memory_is_expandable() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
}
// The same, but for requests that another allocator serves meanwhile (ExpandableSetting::AsBefore).
bool requests_are_expandable();

// Thread-safe, but for programs that change settings meanwhile, which PyTorch does not order either.
class ExpandableSetting {
 public:
  // The settings are one for the process, and so is this.
  static ExpandableSetting& instance();

  // Sets it. On: unless the program has named it.
  void say(bool expandable) FERRO_EXCLUDES(mutex_);
  // As it was before the first `say`, unless the program has named it since.
  void take_back() FERRO_EXCLUDES(mutex_);

  // While one lives, the setting is off where it is on by `say` alone: for requests that another
  // allocator serves.
  class AsBefore {
   public:
    AsBefore() { instance().begin_as_before(); }
    ~AsBefore() { instance().end_as_before(); }
    AsBefore(const AsBefore&) = delete;
    AsBefore& operator=(const AsBefore&) = delete;
  };

 private:
  ExpandableSetting() = default;
  // Did the program name it in the settings in force?
  bool is_programs() const FERRO_REQUIRES(mutex_);
  void write(bool expandable) FERRO_REQUIRES(mutex_);
  void begin_as_before() FERRO_EXCLUDES(mutex_);
  void end_as_before() FERRO_EXCLUDES(mutex_);
  friend bool requests_are_expandable();

  Mutex mutex_;
  bool says_ FERRO_GUARDED_BY(mutex_) = false;
  bool before_ FERRO_GUARDED_BY(mutex_) = false;
  int as_before_ FERRO_GUARDED_BY(mutex_) = 0;       // how many `AsBefore` live
  std::atomic<bool> is_set_aside_{false};            // an `AsBefore` lives, and changed it
  std::string written_ FERRO_GUARDED_BY(mutex_);     // the settings as they were last written here
  std::string of_program_ FERRO_GUARDED_BY(mutex_);  // and before that
};

}  // namespace ferro
