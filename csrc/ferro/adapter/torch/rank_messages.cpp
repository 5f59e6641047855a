#include "ferro/adapter/torch/rank_messages.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>

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

// At the one key that inference mode has too, and that is nobody's for these operators.
void watch_rank_messages() {
  static const auto* const watch = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "c10d",
                                       c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    for (const char* message : {"send", "recv_", "recv_any_source_"}) {
      library->impl(message, torch::CppFunction::makeFromBoxedFunction<&note>());
    }
    return library;  // never destroyed: others may dispatch until the process ends
  }();
  (void)watch;
}

bool has_rank_messages() { return seen.load(std::memory_order_relaxed); }

}  // namespace ferro
