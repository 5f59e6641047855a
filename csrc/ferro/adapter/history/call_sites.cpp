#include "ferro/adapter/history/call_sites.h"

#include <atomic>

namespace ferro {
namespace {

std::atomic<MakeCallSiteSums> made_by{nullptr};

}  // namespace

void set_call_site_sums(MakeCallSiteSums make) { made_by.store(make); }

std::unique_ptr<CallSiteSums> make_call_site_sums() {
  const MakeCallSiteSums make = made_by.load();
  return make != nullptr ? make() : nullptr;
}

}  // namespace ferro
