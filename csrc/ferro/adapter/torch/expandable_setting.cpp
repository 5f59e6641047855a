#include "ferro/adapter/torch/expandable_setting.h"

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr const char* kKey = "expandable_segments";

bool names_it(const std::string& settings) { return settings.find(kKey) != std::string::npos; }

}  // namespace

ExpandableSetting& ExpandableSetting::instance() {
  static auto& setting = *new ExpandableSetting;
  return setting;
}

bool ExpandableSetting::is_programs() const {
  const std::string now = AcceleratorAllocatorConfig::last_allocator_settings();
  return now != written_ && names_it(now);
}

// Repeats the other settings, because PyTorch resets some of those that a text does not name.
void ExpandableSetting::write(bool expandable) {
  const std::string now = AcceleratorAllocatorConfig::last_allocator_settings();
  if (now != written_) {
    of_program_ = now;
  }
  written_ = of_program_ + (of_program_.empty() ? "" : ",") + kKey;
  written_ += expandable ? ":True" : ":False";
  AcceleratorAllocatorConfig::instance().parseArgs(written_);
}

void ExpandableSetting::say(bool expandable) {
  const MutexLock lock(mutex_);
  if ((expandable && is_programs()) || memory_is_expandable() == expandable) {
    return;
  }
  if (!says_) {
    before_ = !expandable;
    says_ = true;
  }
  write(expandable);
}

void ExpandableSetting::take_back() {
  const MutexLock lock(mutex_);
  if (says_ && !is_programs()) {
    write(before_);
  }
  says_ = false;
}

void ExpandableSetting::begin_as_before() {
  const MutexLock lock(mutex_);
  if (as_before_++ == 0 && says_ && !is_programs() && !before_) {
    is_set_aside_.store(true);
    write(false);
  }
}

void ExpandableSetting::end_as_before() {
  const MutexLock lock(mutex_);
  if (--as_before_ == 0 && is_set_aside_.load()) {
    if (!is_programs()) {
      write(true);
    }
    is_set_aside_.store(false);
  }
}

bool requests_are_expandable() {
  return memory_is_expandable() || ExpandableSetting::instance().is_set_aside_.load();
}

}  // namespace ferro
