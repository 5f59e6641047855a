// While it exists, this thread's operators run as plain CPU operators: without autograd, the
// program's modes and its profiler.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace ferro::values {

class BelowModes {
 public:
  BelowModes() : saved_(c10::impl::tls_local_dispatch_key_set()) {
    c10::impl::LocalDispatchKeySet plain = saved_;
    plain.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);  // for factories
    plain.excluded_ = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                      c10::autocast_dispatch_keyset | c10::functorch_transforms_ks | c10::python_ks;
    c10::impl::_force_tls_local_dispatch_key_set(plain);
    if (at::hasCallbacks()) {
      unrecorded_.emplace();
    }
  }
  ~BelowModes() { c10::impl::_force_tls_local_dispatch_key_set(saved_); }
  BelowModes(const BelowModes&) = delete;
  BelowModes& operator=(const BelowModes&) = delete;

 private:
  const c10::impl::LocalDispatchKeySet saved_;
  // Without callbacks nothing is recorded, and the guard takes longer than a small operator.
  std::optional<at::DisableRecordFunctionGuard> unrecorded_;
};

}  // namespace ferro::values
