#include "sim/libraries/cuda/unsupported.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <vector>

namespace {

// Never destroyed: stubs may be called from static destructors of other libraries.
struct Register {
  std::mutex mutex;
  std::vector<const char*> names;
};

Register& the_register() {
  static Register* const instance = new Register;
  return *instance;
}

}  // namespace

extern "C" void ferro_sim_report_unsupported(const char* name) {
  Register& r = the_register();
  const std::lock_guard lock(r.mutex);
  const auto same = [name](const char* known) { return std::string_view(known) == name; };
  if (std::any_of(r.names.begin(), r.names.end(), same)) return;
  r.names.push_back(name);
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
  return index < r.names.size() ? r.names[index] : nullptr;
}
