#include "values/operators.h"

#include "values/attention_operators.h"
#include "values/blocks.h"
#include "values/evaluation.h"
#include "values/gpu.h"
#include "values/places.h"
#include "values/quantized_operators.h"
#include "values/sparse_operators.h"
#include "values/value.h"

#include <ATen/Context.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
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
// Read at each call: a process that forks wraps the operators once, and each child decides.
std::atomic<bool> computes = true;
void wrap_unseen();

// While it exists, the thread's kernels count as an operator's, and so do the results of kernels that
// it reads back.
class InOperator {
 public:
  InOperator(const OperatorTraits& traits, const Stack& stack)
      : traits_(traits),
        stack_(stack),
        outer_(innermost_),
        counts_(*gpu().counts()),
        launched_before_(counts_.launches) {
    innermost_ = this;
    ++counts_.operators;
    if (outer_ != nullptr && outer_->is_opaque_ && has_size() &&
        outer_->own_launches(launched_before_) > 0) {
      outer_->read_result_ = true;
    }
  }
  ~InOperator() {
    innermost_ = outer_;
    --counts_.operators;
    if (outer_ != nullptr) {
      outer_->launched_within_ += counts_.launches - launched_before_;
    }
    if (std::uncaught_exceptions() == exceptions_ && traits_.kind != Kind::kElsewhere) {
      for (const std::uint64_t number : failed_requests_) {
        note_done_without(number, traits_.name);
      }
    } else if (outer_ != nullptr) {
      outer_->failed_requests_.insert(outer_->failed_requests_.end(), failed_requests_.begin(),
                                      failed_requests_.end());
    }
    if (read_result_ && computes.load(std::memory_order_relaxed)) {
      note_read(traits_.name, Learned::kSize);
    }
  }
  InOperator(const InOperator&) = delete;
  InOperator& operator=(const InOperator&) = delete;

  // A request for memory failed in this thread. If the operator ends without an exception all the
  // same, it did without that memory.
  static void add_failed_request(std::uint64_t number) {
    if (innermost_ != nullptr) {
      innermost_->failed_requests_.push_back(number);
    }
  }

  // What its own kernels compute is unknown: the sizes that it reads after them are too.
  void set_opaque() { is_opaque_ = true; }
  // Whether it launched kernels itself so far, and not only by other operators.
  bool has_own_kernels() const { return own_launches(counts_.launches) > 0; }
  // Copies of the thread to the host that ended, by their least certain byte.
  std::uint64_t reads(ferro_sim_certainty least) const {
    return std::atomic_ref(counts_.reads[least]).load(std::memory_order_relaxed);
  }
  std::uint64_t transfers() const { return counts_.transfers; }

  // Whether the thread's innermost operator reads back the result of a kernel, and not an argument.
  static int reads_result(std::uint64_t address) {
    return innermost_ != nullptr && innermost_->reads_result_at(address) ? 1 : 0;
  }

 private:
  bool has_size() const { return traits_.kind == Kind::kReads || traits_.kind == Kind::kDataSized; }
  std::uint64_t own_launches(std::uint64_t launched) const {
    return launched - launched_before_ - launched_within_;
  }
  bool reads_result_at(std::uint64_t address) {
    const bool moves = traits_.kind == Kind::kReads || traits_.kind == Kind::kCopy ||
                       traits_.kind == Kind::kTransfer;
    if (moves || stack_.size() < traits_.arguments) {
      return false;
    }
    const auto is_there = [&](const c10::IValue& argument) {
      if (!argument.isTensor() || !argument.toTensor().has_storage()) {
        return false;
      }
      const c10::Storage& storage = argument.toTensor().storage();
      const auto begin = reinterpret_cast<std::uint64_t>(storage.data());
      return begin <= address && address < begin + storage.nbytes();
    };
    const bool is_result = std::none_of(
        stack_.end() - static_cast<std::ptrdiff_t>(traits_.arguments), stack_.end(), is_there);
    read_result_ = read_result_ || is_result;
    return is_result;
  }

  static thread_local InOperator* innermost_;
  const OperatorTraits& traits_;
  const Stack& stack_;
  InOperator* const outer_;
  ferro_sim_thread_counts& counts_;
  const std::uint64_t launched_before_;
  std::uint64_t launched_within_ = 0;  // by operators within it
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<std::uint64_t> failed_requests_;
  bool is_opaque_ = false;
  bool read_result_ = false;
};
thread_local InOperator* InOperator::innermost_ = nullptr;

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
        sparse_(key == DispatchKey::SparseCUDA ? sparse_evaluation(traits_.name) : nullptr) {}

  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (any_unseen.load(std::memory_order_relaxed)) {
      wrap_unseen();
    }
    InOperator inside(traits_, *stack);
    const Found found(traits_);
    try {
      if (sparse_ != nullptr && computes.load(std::memory_order_relaxed)) {
        sparse_(*stack, [&] { kernel_.callBoxed(op, keys, stack); });
      } else if (traits_.kind == Kind::kUnset) {
        kernel_.callBoxed(op, keys, stack);
        if (computes.load(std::memory_order_relaxed) && !fills_unset()) {
          forget_unset(stack->back().toTensor());
        }
      } else if (!computable_ && computes.load(std::memory_order_relaxed) &&
                 traits_.kind != Kind::kNothing && traits_.kind != Kind::kCopy) {
        inside.set_opaque();
        Evaluation evaluation(op, traits_);
        evaluation.begin_opaque(torch::jit::last(*stack, traits_.arguments));
        kernel_.callBoxed(op, keys, stack);
        if (inside.has_own_kernels()) {
          evaluation.forget(*stack);
        }
      } else if (!computable_ || !computes.load(std::memory_order_relaxed) ||
                 traits_.kind == Kind::kNothing) {
        if (traits_.resizes && computable_ && computes.load(std::memory_order_relaxed)) {
          resize(op, keys, stack);
        } else {
          kernel_.callBoxed(op, keys, stack);
        }
      } else if (traits_.kind == Kind::kReads || traits_.kind == Kind::kCopy) {
        const std::uint64_t unknown = inside.reads(FERRO_SIM_UNKNOWN);
        const std::uint64_t drawn = inside.reads(FERRO_SIM_DRAWN);
        evaluate(op, keys, stack, inside);
        const bool read_unknown = inside.reads(FERRO_SIM_UNKNOWN) != unknown;
        if (read_unknown || inside.reads(FERRO_SIM_DRAWN) != drawn) {
          const Learned learned = learned_from(*stack);
          note_read(traits_.name, read_unknown ? learned : std::min(learned, Learned::kDrawn));
        }
      } else {
        evaluate(op, keys, stack, inside);
      }
    } catch (const std::exception& error) {
      note_failure(traits_.name, error.what());
      throw;
    }
  }

 private:
  // `stack` ends with the results of a read: a number, or the tensor that was copied to.
  Learned learned_from(const Stack& stack) const {
    if (traits_.returns == 0) {
      return Learned::kInteger;  // copies of lists
    }
    const c10::IValue& result = stack.back();
    const bool is_float = result.isTensor()
                              ? !at::isIntegralType(result.toTensor().scalar_type(), true)
                              : !result.isInt() && !result.isBool();
    return is_float && !uses_as_integers() ? Learned::kFloat : Learned::kInteger;
  }

  void evaluate(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                const InOperator& inside) {
    if (traits_.kind == Kind::kReads) {
      kernel_.callBoxed(op, keys, stack);
      return;
    }
    Evaluation evaluation(op, traits_);
    evaluation.begin(torch::jit::last(*stack, traits_.arguments));
    const bool transfer = traits_.kind == Kind::kTransfer;
    const std::uint64_t before = inside.transfers();
    kernel_.callBoxed(op, keys, stack);
    // One operator for each tensor did the work: these are evaluated.
    const bool done_by_others = traits_.by_element && !inside.has_own_kernels();
    if ((!transfer || inside.transfers() == before) && !done_by_others) {
      evaluation.end(*stack);
    }
  }

  // What the storage's memory has more than before is unset.
  void resize(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
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
  // One function serves all devices, and launches kernels itself.
  const std::string& name = op.operator_name().name;
  return op.hasKernelForDispatchKey(key) ||
         (key == DispatchKey::CUDA && (name == "aten::copy_" || name == "aten::kaiser_window"));
}

// Most sparse operators consist of others, which are computed. What those with kernels of their own
// compute is unknown, unless `sparse_evaluation` knows them.
constexpr DispatchKey kKeys[] = {DispatchKey::CUDA, DispatchKey::SparseCUDA,
                                 DispatchKey::SparseCsrCUDA, DispatchKey::QuantizedCUDA};

// Calls PyTorch's function, and makes its result unknown memory. Without the stack of a boxed kernel,
// which takes longer.
template <auto function, typename... Arguments>
class Unset : public c10::OperatorKernel {
 public:
  at::Tensor operator()(Arguments... arguments) {
    at::Tensor result = function(arguments...);
    if (computes.load(std::memory_order_relaxed) && !fills_unset()) {
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

// None: the operator's own kernel stays.
std::optional<c10::KernelFunction> wrapped_kernel(const OperatorHandle& op, DispatchKey key) {
  using c10::KernelFunction;
  OperatorTraits traits = traits_of(op);
  const bool calls_another = traits.name == "aten::zero_" && key == DispatchKey::CUDA;  // fill_
  if (traits.kind == Kind::kView || calls_another) {
    return std::nullopt;
  }
  if (traits.kind == Kind::kUnset && key == DispatchKey::CUDA &&
      traits.name.starts_with("aten::empty")) {
    return traits.name == "aten::empty_strided"
               ? KernelFunction::makeFromUnboxedFunctor<false, EmptyStrided>(
                     std::make_unique<EmptyStrided>())
               : KernelFunction::makeFromUnboxedFunctor<false, Empty>(std::make_unique<Empty>());
  }
  return KernelFunction::makeFromBoxedFunctor(
      std::make_unique<Wrapper>(op.getComputedKernelForDispatchKey(key), std::move(traits), key));
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
      if (!op || !has_kernel(*op, key)) {
        continue;
      }
      std::optional<c10::KernelFunction> kernel = wrapped_kernel(*op, key);
      if (!kernel) {
        continue;
      }
      auto handle = dispatcher.registerImpl(name, key, *std::move(kernel), std::nullopt, nullptr,
                                            "values of the simulated GPU");
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

void note_own_launches(int change) {
  gpu().counts()->noting += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

void note_failed_request(std::uint64_t number) { InOperator::add_failed_request(number); }

void install(bool compute) {
  find_gpu();
  computes.store(compute, std::memory_order_relaxed);
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
