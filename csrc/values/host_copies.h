// Copies of tensors between a card and the host, which keep what is known about their bytes.
//
// The host's memory has no marks. So the storages that got bytes from a card are remembered, with how
// sure the bytes are and where they come from, until the program writes to them or frees them. When a
// tensor of such a storage returns to a card, it is as sure as before, and choices from it are the
// same. PyTorch counts writes by operators, except in inference mode and the first one after some
// copies. These, and writes that it does not see, such as by numpy, are noticed if they change the
// bytes, of large copies the first ones of each part. After a copy that was queued, only PyTorch's
// count tells. Used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace ferro::values {

class HostCopy {
 public:
  // None: the arguments of `copy_` are not one tensor on the host and one on a card.
  static std::optional<HostCopy> of(c10::ArrayRef<c10::IValue> arguments);
  // Called after the operator, in the program's name.
  void note() const;

 private:
  HostCopy(at::Tensor to, at::Tensor from, bool non_blocking)
      : to_(std::move(to)), from_(std::move(from)), non_blocking_(non_blocking) {}

  at::Tensor to_;
  at::Tensor from_;
  bool non_blocking_;
};

}  // namespace ferro::values
