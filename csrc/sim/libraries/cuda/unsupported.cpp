#include "sim/libraries/cuda/unsupported.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>

namespace {

// Never destroyed: stubs may be called from static destructors of other libraries.
struct Register {
  std::mutex mutex;
  std::deque<std::string> names;
};

Register& the_register() {
  static Register* const instance = new Register;
  return *instance;
}

}  // namespace

extern "C" void ferro_sim_report_unsupported(const char* name) {
  Register& r = the_register();
  const std::lock_guard lock(r.mutex);
  if (std::find(r.names.begin(), r.names.end(), name) != r.names.end()) return;
  r.names.emplace_back(name);
  std::fprintf(stderr, "ferro_alloc: the simulated GPU does not have %s (not supported)\n", name);
}

extern "C" size_t ferro_sim_unsupported_count() {
  Register& r = the_register();
  const std::lock_guard lock(r.mutex);
  return r.names.size();
}

extern "C" const char* ferro_sim_unsupported_name(size_t index) {
  Register& r = the_register();
  const std::lock_guard lock(r.mutex);
  return index < r.names.size() ? r.names[index].c_str() : nullptr;
}
