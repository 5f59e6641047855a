#include "ferro/adapter/torch/rank_messages.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <optional>
#include <vector>

namespace ferro {
namespace {

std::atomic<bool> seen{false};

void note(const c10::OperatorHandle& message, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!seen.load(std::memory_order_relaxed)) {
    const c10::IValue& tensors = torch::jit::peek(*stack, 0, message.schema().arguments().size());
    if (tensors.isTensorList()) {
      for (const at::Tensor& tensor : tensors.toTensorVector()) {
        if (tensor.is_cuda()) {
          seen.store(true, std::memory_order_relaxed);
        }
      }
    }
  }
  message.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect),
      stack);
}

}  // namespace

// Uses the only key that inference mode has too and that is unused for these operators.
void watch_rank_messages() {
  static const auto* const watch = [] {
    auto* handles = new std::vector<c10::RegistrationHandleRAII>();
    for (const char* message : {"c10d::send", "c10d::recv_", "c10d::recv_any_source_"}) {
      handles->push_back(c10::Dispatcher::singleton().registerImpl(
          c10::OperatorName(message, ""), c10::DispatchKey::BackendSelect,
          c10::KernelFunction::makeFromBoxedFunction<&note>(), std::nullopt, nullptr,
          "ferro_alloc's look at messages between ranks"));
    }
    return handles;  // never destroyed: threads may dispatch until the process ends
  }();
  (void)watch;
}

bool has_rank_messages() { return seen.load(std::memory_order_relaxed); }

}  // namespace ferro
