#include "ferro/adapter/torch/expandable_setting.h"

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr const char* kKey = "expandable_segments";

bool names_setting(const std::string& settings) { return settings.find(kKey) != std::string::npos; }

}  // namespace

ExpandableSetting& ExpandableSetting::instance() {
  static auto& setting = *new ExpandableSetting;
  return setting;
}

bool ExpandableSetting::is_named_by_program() const {
  const std::string now = AcceleratorAllocatorConfig::last_allocator_settings();
  return now != written_ && names_setting(now);
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

void ExpandableSetting::set(bool expandable) {
  const MutexLock lock(mutex_);
  if ((expandable && is_named_by_program()) || memory_is_expandable() == expandable) {
    return;
  }
  if (!is_set_) {
    before_ = !expandable;
    is_set_ = true;
  }
  write(expandable);
}

void ExpandableSetting::restore() {
  const MutexLock lock(mutex_);
  if (is_set_ && !is_named_by_program()) {
    write(before_);
  }
  is_set_ = false;
}

void ExpandableSetting::begin_original() {
  const MutexLock lock(mutex_);
  if (originals_++ == 0 && is_set_ && !is_named_by_program() && !before_) {
    is_set_aside_.store(true);
    write(false);
  }
}

void ExpandableSetting::end_original() {
  const MutexLock lock(mutex_);
  if (--originals_ == 0 && is_set_aside_.load()) {
    if (!is_named_by_program()) {
      write(true);
    }
    is_set_aside_.store(false);
  }
}

bool requests_are_expandable() {
  return memory_is_expandable() || ExpandableSetting::instance().is_set_aside_.load();
}

}  // namespace ferro
