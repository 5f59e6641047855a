#include "ferro/adapter/torch/expandable_setting.h"

#include <cctype>
#include <exception>

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr const char* kKey = "expandable_segments";

// PyTorch's parser ignores blanks, also within words.
std::string without_blanks(std::string settings) {
  std::erase_if(settings, [](unsigned char ch) { return std::isspace(ch) != 0; });
  return settings;
}

bool names_setting(const std::string& settings) {
  return without_blanks(settings).find(kKey) != std::string::npos;
}

// The settings with this one as the last, which is in force. They may end with a comma, but the
// parser refuses two in a row.
std::string with_setting(const std::string& settings, bool expandable) {
  const std::string words = without_blanks(settings);
  const bool needs_comma = !words.empty() && words.back() != ',';
  return settings + (needs_comma ? "," : "") + kKey + (expandable ? ":True" : ":False");
}

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
  written_ = with_setting(of_program_, expandable);
  try {
    AcceleratorAllocatorConfig::instance().parseArgs(written_);
  } catch (const std::exception&) {
    // PyTorch keeps a text that it refused, and has told the program.
    of_program_.clear();
    written_ = with_setting("", expandable);
    AcceleratorAllocatorConfig::instance().parseArgs(written_);
  }
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
