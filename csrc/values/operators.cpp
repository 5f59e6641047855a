#include "values/operators.h"

#include "values/attention_operators.h"
#include "values/blocks.h"
#include "values/direct_kernels.h"
#include "values/evaluated_call.h"
#include "values/evaluation.h"
#include "values/gpu.h"
#include "values/in_operator.h"
#include "values/places.h"
#include "values/quantized_operators.h"
#include "values/sparse_operators.h"
#include "values/value.h"

#include <ATen/Context.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided_native.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

namespace ferro::values {
namespace {

using c10::DispatchKey;
using c10::OperatorHandle;
using torch::jit::Stack;

std::atomic<bool> any_unseen = false;
std::atomic<bool> any_benchmarked = false;

// While it exists, what the thread's operator reads back is zero, and searches find the first element.
// Its results are computed without that, or unknown.
class Found {
 public:
  explicit Found(const OperatorTraits& traits) : searches_(traits.searches) {
    if (searches_) {
      gpu().answer(0);
    }
  }
  ~Found() {
    if (searches_) {
      gpu().end_answer();
    }
  }
  Found(const Found&) = delete;
  Found& operator=(const Found&) = delete;

 private:
  const bool searches_;
};

// Whether PyTorch fills memory that the program has not set.
bool fills_unset() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

class Wrapper : public c10::OperatorKernel {
 public:
  Wrapper(c10::SafeKernelFunction kernel, OperatorTraits traits, DispatchKey key)
      : kernel_(std::move(kernel)),
        traits_(std::move(traits)),
        computable_(key == DispatchKey::CUDA),
        may_benchmark_(traits_.name.starts_with("aten::cudnn_convolution")),
        sparse_(key == DispatchKey::SparseCUDA      ? sparse_evaluation(traits_.name)
                : key == DispatchKey::SparseCsrCUDA ? compressed_evaluation(traits_.name)
                                                    : nullptr) {}

  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    call_operator(traits_, *stack, [&](InOperator& inside) {
      const Found found(traits_);
      if (computes_values.load(std::memory_order_relaxed)) {
        compute(op, keys, stack, inside);
      } else {
        kernel_.callBoxed(op, keys, stack);
      }
      if (may_benchmark_ && at::globalContext().benchmarkCuDNN()) {
        any_benchmarked.store(true, std::memory_order_relaxed);
      }
    });
  }

 private:
  void compute(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               InOperator& inside) const {
    const auto call = [&] { kernel_.callBoxed(op, keys, stack); };
    if (sparse_ != nullptr && sparse_(*stack, call)) {
      return;
    }
    if (traits_.checks_success) {
      assume_success(torch::jit::peek(*stack, 0, traits_.arguments).toTensor());
    }
    if (traits_.kind == Kind::kUnset) {
      call();
      if (!fills_unset()) {
        forget_unset(stack->back().toTensor());
      }
    } else if (traits_.kind == Kind::kNothing || (!computable_ && traits_.kind == Kind::kCopy)) {
      if (traits_.resizes && computable_) {
        resize(op, keys, stack);
      } else {
        call();
      }
    } else if (!computable_) {
      inside.set_opaque();
      Evaluation evaluation(op, traits_);
      evaluation.begin_opaque(torch::jit::last(*stack, traits_.arguments));
      call();
      if (inside.has_own_kernels()) {
        evaluation.forget(torch::jit::last(*stack, traits_.returns));
      }
    } else if (traits_.kind == Kind::kReads) {
      const Reads before(inside);
      call();
      before.note(inside, traits_, torch::jit::last(*stack, traits_.returns));
    } else {
      const std::optional<std::int64_t> least = inside.least_size();
      const std::uint64_t draws = inside.reads(FERRO_SIM_DRAWN);
      EvaluatedCall evaluated(op, traits_, inside, torch::jit::last(*stack, traits_.arguments),
                              Evaluation::Lifetime::kUntilTaken);
      call();
      evaluated.end(*stack);
      // Numbers of which none is the largest possible class may be no classes: places within an
      // expert have no end.
      if (least && inside.reads(FERRO_SIM_DRAWN) != draws && inside.largest_read() + 1 != *least) {
        note_read(traits_.name, Learned::kDrawn);
      }
    }
  }

  // Decompositions of unknown matrices succeed. A program that would catch an error of theirs depends
  // on that.
  static void assume_success(const at::Tensor& codes) {
    if (!codes.is_cuda() || codes.numel() == 0) {
      return;
    }
    // As the check itself does.
    at::cuda::getCurrentCUDAStream(codes.device().index()).synchronize();
    if (certainty_of(reinterpret_cast<std::uint64_t>(codes.data_ptr()), codes.nbytes()) !=
        FERRO_SIM_KNOWN) {
      codes.zero_();
      if (const std::string handler = handler_around(); !handler.empty()) {
        note_read("aten::_linalg_check_errors", Learned::kInteger, {handler}, {}, true);
      }
    }
  }

  // Of memory, whose facts other threads may change.
  static int certainty_of(std::uint64_t address, std::size_t bytes) {
    struct Question {
      std::uint64_t address;
      std::size_t bytes;
      int answer;
    } question{address, bytes, -1};
    gpu().at_once(
        [](void* argument) {
          auto& asked = *static_cast<Question*>(argument);
          asked.answer = gpu().least_certainty(asked.address, asked.bytes);
        },
        &question);
    return question.answer;
  }

  // What the storage's memory has more than before is unset.
  void resize(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    const at::Tensor& tensor = torch::jit::peek(*stack, 0, traits_.arguments).toTensor();
    const c10::Storage storage = tensor.storage();
    const std::size_t before = storage.nbytes();
    kernel_.callBoxed(op, keys, stack);
    if (storage.nbytes() > before && !fills_unset()) {
      forget_unset(storage.device().index(),
                   reinterpret_cast<std::uint64_t>(storage.data()) + before,
                   storage.nbytes() - before);
    }
  }

  const c10::SafeKernelFunction kernel_;
  const OperatorTraits traits_;
  const bool computable_;
  const bool may_benchmark_;  // cuDNN compares its algorithms, if the program asks for that
  const SparseEvaluation sparse_;
};

class Listener : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const OperatorHandle& op) override;
  void onOperatorDeregistered(const OperatorHandle&) override {}
};

// Never destroyed: kernels are called until the process ends.
struct Wrapped {
  std::mutex mutex;
  std::vector<c10::OperatorName> unseen;
  std::vector<c10::RegistrationHandleRAII> handles;
};

Wrapped& wrapped() {
  static Wrapped* const instance = new Wrapped;
  return *instance;
}

// Called under the dispatcher's lock.
void Listener::onOperatorRegistered(const OperatorHandle& op) {
  Wrapped& w = wrapped();
  const std::lock_guard lock(w.mutex);
  w.unseen.push_back(op.operator_name());
  any_unseen.store(true, std::memory_order_relaxed);
}

bool has_kernel(const OperatorHandle& op, DispatchKey key) {
  // One function serves all devices, and launches kernels itself, or checks what the program gave.
  constexpr const char* kOfAllDevices[] = {"aten::copy_",          "aten::kaiser_window",
                                           "aten::conj_physical_", "aten::_is_all_true",
                                           "aten::_to_copy",       "aten::_linalg_check_errors"};
  return op.hasKernelForDispatchKey(key) ||
         (key == DispatchKey::CUDA &&
          std::find(std::begin(kOfAllDevices), std::end(kOfAllDevices), op.operator_name().name) !=
              std::end(kOfAllDevices));
}

// Most sparse operators consist of others, which are computed. What those with kernels of their own
// compute is unknown, unless `sparse_evaluation` knows them.
constexpr DispatchKey kKeys[] = {DispatchKey::CUDA, DispatchKey::SparseCUDA,
                                 DispatchKey::SparseCsrCUDA, DispatchKey::QuantizedCUDA};

// Whether the thread is in an operator that fills the memory that it allocates.
thread_local bool is_filling = false;

class Filling {
 public:
  Filling() { is_filling = true; }
  ~Filling() { is_filling = before_; }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

 private:
  const bool before_ = is_filling;
};

// Calls PyTorch's function, and makes its result unknown memory. Without the stack of a boxed kernel,
// which takes longer.
template <auto function, typename... Arguments>
class Unset : public c10::OperatorKernel {
 public:
  at::Tensor operator()(Arguments... arguments) {
    at::Tensor result = function(arguments...);
    if (!is_filling && computes_values.load(std::memory_order_relaxed) && !fills_unset()) {
      forget_unset(result);
    }
    return result;
  }
};
using Empty = Unset<&at::native::empty_cuda, at::IntArrayRef, std::optional<at::ScalarType>,
                    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                    std::optional<at::MemoryFormat>>;
using EmptyStrided = Unset<&at::native::empty_strided_cuda, at::IntArrayRef, at::IntArrayRef,
                           std::optional<at::ScalarType>, std::optional<at::Layout>,
                           std::optional<at::Device>, std::optional<bool>>;

// Calls PyTorch's function, which copies to all that it allocates.
class ToCopy : public c10::OperatorKernel {
 public:
  at::Tensor operator()(const at::Tensor& self, std::optional<at::ScalarType> type,
                        std::optional<at::Layout> layout, std::optional<at::Device> device,
                        std::optional<bool> pinned, bool non_blocking,
                        std::optional<at::MemoryFormat> format) {
    const Filling guard;
    return at::native::_to_copy(self, type, layout, device, pinned, non_blocking, format);
  }
};

// None: the operator's own kernel stays.
std::optional<WrappedKernel> wrapped_kernel(const OperatorHandle& op, DispatchKey key) {
  using c10::KernelFunction;
  OperatorTraits traits = traits_of(op);
  const bool calls_another = traits.name == "aten::zero_" && key == DispatchKey::CUDA;  // fill_
  if (traits.kind == Kind::kView || calls_another) {
    return std::nullopt;
  }
  if (traits.kind == Kind::kUnset && key == DispatchKey::CUDA &&
      traits.name.starts_with("aten::empty")) {
    return WrappedKernel{
        traits.name == "aten::empty_strided"
            ? KernelFunction::makeFromUnboxedFunctor<false, EmptyStrided>(
                  std::make_unique<EmptyStrided>())
            : KernelFunction::makeFromUnboxedFunctor<false, Empty>(std::make_unique<Empty>())};
  }
  if (traits.name == "aten::_to_copy") {
    return WrappedKernel{
        KernelFunction::makeFromUnboxedFunctor<false, ToCopy>(std::make_unique<ToCopy>())};
  }
  if (key == DispatchKey::CUDA) {
    if (std::optional<WrappedKernel> direct = direct_kernel(op, traits)) {
      return direct;
    }
  }
  return WrappedKernel{KernelFunction::makeFromBoxedFunctor(
      std::make_unique<Wrapper>(op.getComputedKernelForDispatchKey(key), std::move(traits), key))};
}

class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void wrap_unseen() {
  Wrapped& w = wrapped();
  std::vector<c10::OperatorName> names;
  {
    const std::lock_guard lock(w.mutex);
    names.swap(w.unseen);
    any_unseen.store(false, std::memory_order_relaxed);
  }
  // Suppresses the warning that a kernel is replaced.
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : names) {
    const auto op = dispatcher.findSchema(name);
    for (const DispatchKey key : kKeys) {
      std::optional<WrappedKernel> kernel =
          op && has_kernel(*op, key) ? wrapped_kernel(*op, key) : std::nullopt;
      if (!kernel) {
        continue;
      }
      auto handle =
          dispatcher.registerImpl(name, key, std::move(kernel->function), kernel->signature,
                                  nullptr, "values of the simulated GPU");
      const std::lock_guard lock(w.mutex);
      w.handles.push_back(std::move(handle));
    }
  }
}

constexpr ferro_sim_outside_observer kOutsideObserver = {
    [](std::uint64_t address, std::uint64_t* begin, std::size_t* bytes) {
      return find_block(address, begin, bytes) ? 1 : 0;
    },
    &follow_blocks,
    [](const char* name) { note_kernel(name); },
    [](ferro_sim_certainty least) {
      // Bytes without a type: they may be integers.
      note_read("cudaMemcpy", least == FERRO_SIM_DRAWN ? Learned::kDrawn : Learned::kInteger);
    },
};

}  // namespace

void wrap_new_operators() {
  if (any_unseen.load(std::memory_order_relaxed)) {
    wrap_unseen();
  }
}

void note_own_launches(int change) {
  gpu().counts()->noting += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

bool has_benchmarked() { return any_benchmarked.load(std::memory_order_relaxed); }

void note_failed_request(std::uint64_t number) { InOperator::add_failed_request(number); }

void install(bool compute) {
  find_gpu();
  computes_values.store(compute, std::memory_order_relaxed);
  gpu().observe_outside(compute ? &kOutsideObserver : nullptr);
  static bool is_installed = false;
  if (is_installed) {
    return;
  }
  is_installed = true;
  static auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  (void)listening;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  gpu().on_read_back(&InOperator::reads_result);
  install_attention();
  install_quantized();
  leak_values_at_exit();
  wrap_unseen();
}

}  // namespace ferro::values
