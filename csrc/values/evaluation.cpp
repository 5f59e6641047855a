#include "values/evaluation.h"

#include "values/below_modes.h"
#include "values/gpu.h"
#include "values/host_operator.h"
#include "values/places.h"
#include "values/value.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

namespace ferro::values {

using torch::jit::Stack;

struct Evaluation::Job {
  struct Result {
    Value::Slot slot;
    bool keeps;
  };

  explicit Job(HostOperator called) : host(std::move(called)) {}

  HostOperator host;
  std::vector<Operand> operands;
  std::vector<Result> results;
  std::int64_t input_elements = 0;
  std::int64_t result_elements = 0;
  bool agrees = false;  // no input is of floating-point numbers
  bool computable = false;
  bool takes_unknown = false;
  bool taken = false;  // `take` has run
  bool ran = false;
  ferro_sim_certainty certainty = FERRO_SIM_KNOWN;  // of the inputs, and so of the results
  bool value_if_known = false;                      // or drawn
  bool value_if_unknown = false;
  bool tests_whether_finite = false;
  std::optional<PositionsRange> positions;

  void take() {
    for (const Operand& operand : operands) {
      if (operand.is_input && certainty != FERRO_SIM_UNKNOWN) {
        certainty = std::min(certainty, operand.at.certainty());
      }
    }
    // Unknown numbers are assumed to be finite, as zeros are.
    const bool is_assumed = certainty == FERRO_SIM_UNKNOWN && tests_whether_finite;
    certainty = is_assumed ? FERRO_SIM_KNOWN : certainty;
    computable = certainty != FERRO_SIM_UNKNOWN || takes_unknown;
    for (Operand& operand : operands) {
      if (computable && operand.is_input) {
        operand.taken = is_assumed ? operand.at.zeros() : operand.at.take();
        computable = operand.taken.has_value();
      }
    }
    taken = true;
  }

  // For results of sizes that depend on values.
  void run() {
    const BelowModes guard;
    host.take_operands(std::move(operands));
    ran = computable && host.run();
  }

  void drop_inputs() {
    operands.clear();
    host.clear(true);
  }

  void give() {
    const bool has_values = ran || (computable && has_value_if_taken() && Recipe::make_room());
    std::shared_ptr<Recipe> recipe;
    if (has_values && !ran) {
      host.take_operands(std::move(operands));
      recipe = std::make_shared<Recipe>(std::move(host));
    }
    for (const Result& result : results) {
      if (!has_values || !give_value(result, recipe)) {
        result.slot.layout.forget(result.keeps);
      }
    }
    if (positions && !has_values && !results.empty()) {
      draw(results.back().slot);
    }
    drop_inputs();
  }

  bool has_value_if_taken() const {
    return certainty != FERRO_SIM_UNKNOWN ? value_if_known : value_if_unknown;
  }

 private:
  bool give_value(const Result& result, const std::shared_ptr<Recipe>& recipe) {
    const DeviceTensor& there = result.slot.layout;
    if (recipe && there.can_hold()) {
      there.hold(*ValueRef(Value::make(recipe, result.slot)), certainty);
      return true;
    }
    const BelowModes guard;
    std::optional<at::Tensor> computed;
    if (recipe) {
      computed = ValueRef(Value::make(recipe, result.slot))->compute();
    } else if (auto value =
                   host.value(result.slot.of_argument, result.slot.place, result.slot.in_list)) {
      computed = there.lay_out(*value);
    }
    if (!computed || !computed->defined()) {
      return false;
    }
    if (there.can_hold()) {
      there.hold(*ValueRef(Value::make(*computed)), certainty);
    } else {
      there.write(*computed, certainty);
    }
    return true;
  }

  // Positions of numbers are choices; those of unknown integers and booleans are unknown.
  void draw(const Value::Slot& slot) const {
    static std::uint64_t drawn = 0;
    const DeviceTensor& there = slot.layout;
    if (there.type() != at::kLong || positions->extent <= 0 || !there.can_hold()) {
      return;
    }
    const auto& [extent, along, dimensions] = *positions;
    const auto dimension = there.sizes().size() == dimensions ? along : std::nullopt;
    const auto recipe =
        std::make_shared<Recipe>(DrawnPositions{there.sizes(), extent, dimension, ++drawn});
    there.hold(*ValueRef(Value::make(recipe, slot)), agrees ? FERRO_SIM_UNKNOWN : FERRO_SIM_DRAWN);
  }
};

namespace {

template <void (Evaluation::Job::*act)()>
void call_job(void* holder) {
  const std::unique_ptr<std::shared_ptr<Evaluation::Job>> job(
      static_cast<std::shared_ptr<Evaluation::Job>*>(holder));
  ((**job).*act)();
}

// Visits the tensors of an argument or result, with their places in a list.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), 0);
  } else if (value.isTensorList()) {
    std::size_t i = 0;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor, i++);
    }
  } else if (value.isOptionalTensorList()) {
    std::size_t i = 0;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) {
        visit(*tensor, i);
      }
      ++i;
    }
  }
}

// The dense tensors that hold the elements of a tensor.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() == at::kStrided) {
    return {tensor};
  }
  // Without the dispatcher, which would count these as the program's operators.
  if (tensor.layout() == at::kSparse) {
    const auto* sparse = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return {sparse->indices(), sparse->values()};
  }
  if (at::sparse_csr::is_sparse_compressed(tensor)) {
    const auto* sparse = at::sparse_csr::get_sparse_csr_impl(tensor);
    return {sparse->compressed_indices(), sparse->plain_indices(), sparse->values()};
  }
  return {};
}

bool is_number(const DeviceTensor& tensor) { return !c10::isIntegralType(tensor.type(), true); }

bool same_layout(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.is_non_overlapping_and_dense();
}

}  // namespace

Evaluation::Evaluation(const c10::OperatorHandle& op, const OperatorTraits& traits,
                       const Stack& stack)
    : op_(op),
      traits_(traits),
      arguments_(stack.end() - static_cast<std::ptrdiff_t>(traits.arguments), stack.end()) {}

Evaluation::~Evaluation() {
  if (answering_) {
    gpu().end_answer();
  }
  if (takes_ && !is_given_) {
    gpu().at_once(call_job<&Job::drop_inputs>, new std::shared_ptr<Job>(job_));
  }
}

bool Evaluation::is_moved_by_driver() const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : arguments_) {
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor, std::size_t) { tensors.push_back(tensor); });
  }
  const bool elsewhere = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.device() != tensors.front().device() || !tensor.is_cuda();
  });
  return elsewhere ||
         (tensors.size() == 2 && tensors[0].scalar_type() == tensors[1].scalar_type() &&
          tensors[0].layout() == at::kStrided && tensors[1].layout() == at::kStrided &&
          same_layout(tensors[0], tensors[1]));
}

bool Evaluation::submit(void (*function)(void*)) {
  auto holder = std::make_unique<std::shared_ptr<Job>>(job_);
  if (gpu().in_order(device_, stream_, function, holder.get()) != 0) {
    return false;
  }
  holder.release();
  return true;
}

void Evaluation::find_operands() {
  bool describable = true;
  job_->operands.reserve(4);
  for (std::size_t place = 0; place < arguments_.size(); ++place) {
    const c10::IValue& argument = arguments_[place];
    const bool overwritten = std::find(traits_.overwritten.begin(), traits_.overwritten.end(),
                                       place) != traits_.overwritten.end();
    for_each_tensor(argument, [&](const at::Tensor& tensor, std::size_t in_list) {
      if (!tensor.defined()) {
        return;
      }
      job_->input_elements += overwritten ? 0 : tensor.numel();
      if (!tensor.is_cuda()) {
        return;
      }
      const int device = tensor.device().index();
      describable = describable && (device_ < 0 || device_ == device);
      device_ = device;
      if (auto described = DeviceTensor::describe(tensor)) {
        job_->operands.push_back({place, in_list, std::move(*described), !overwritten});
      } else {
        describable = describable && tensor.numel() == 0;
      }
    });
    if (argument.isDevice() && argument.toDevice().is_cuda() && device_ < 0) {
      const c10::Device device = argument.toDevice();
      device_ = device.has_index() ? device.index() : c10::cuda::current_device();
    }
  }
  const std::int64_t most = traits_.costly ? kMaxCostlyElements : kMaxElements;
  job_->computable = traits_.computable && describable && traits_.kind != Kind::kUnset &&
                     job_->input_elements <= most;
  const bool of_numbers =
      std::any_of(job_->operands.begin(), job_->operands.end(),
                  [](const Operand& operand) { return operand.is_input && is_number(operand.at); });
  job_->agrees = !of_numbers;
  job_->takes_unknown =
      !traits_.costly && (job_->input_elements <= kMaxUnknownNumbers ||
                          (job_->input_elements <= kMaxUnknownElements &&
                           (!of_numbers || traits_.tests || traits_.kind == Kind::kDataSized)));
}

void Evaluation::begin() {
  if (traits_.kind == Kind::kCopy && is_moved_by_driver()) {
    nothing_to_do_ = true;
    return;
  }
  job_ = std::make_shared<Job>(HostOperator(op_, traits_));
  find_operands();
  if (device_ < 0) {
    nothing_to_do_ = true;
    return;
  }
  const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_));
  stream_ = stream.stream();
  if (traits_.positions) {
    job_->positions = range_of_positions(traits_, arguments_);
  }
  job_->tests_whether_finite = tests_whether_finite(traits_, arguments_);
  if (job_->computable) {
    takes_ = submit(call_job<&Job::take>);
    job_->computable = job_->computable && takes_;
    // A capture refuses the question for the generator's offset.
    if (takes_ && traits_.random) {
      job_->host.seed(arguments_, device_);
    }
  }
  if (traits_.kind == Kind::kDataSized) {
    if (job_->computable && !job_->taken) {
      stream.synchronize();
    }
    begin_sized();
  }
}

void Evaluation::begin_sized() {
  const bool is_size = traits_.name != "aten::equal";
  const std::optional<std::int64_t> assumed =
      is_size ? assumed_rows(traits_, arguments_) : std::nullopt;
  // Unknown values give the assumed size, and without an assumption that of zeros.
  job_->computable = job_->computable && (job_->certainty != FERRO_SIM_UNKNOWN || !assumed);
  if (job_->computable) {
    job_->computable = job_->host.take_arguments(arguments_, job_->operands);
  }
  gpu().at_once(call_job<&Job::run>, new std::shared_ptr<Job>(job_));
  gpu().answer(static_cast<std::uint64_t>(job_->ran ? job_->host.answer() : assumed.value_or(0)));
  answering_ = true;
  if (job_->ran && job_->certainty == FERRO_SIM_DRAWN) {
    note_read(traits_.name, Learned::kDrawn);
  } else if (!job_->ran || job_->certainty == FERRO_SIM_UNKNOWN) {
    note_read(traits_.name, is_size ? Learned::kSize : Learned::kInteger);
  }
}

void Evaluation::end(Stack& stack) {
  if (answering_) {
    gpu().end_answer();
    answering_ = false;
  }
  if (nothing_to_do_) {
    return;
  }
  if (job_->ran) {
    fit_results(stack);
  }
  collect_results(stack);
  if (job_->results.empty()) {
    return;
  }
  choose();
  is_given_ = true;
  if (!submit(call_job<&Job::give>)) {
    // A capture: the kernels run in replays, where their values are not computed.
    for (Job::Result& result : job_->results) {
      result.keeps = true;
    }
    job_->computable = job_->ran = false;
    job_->positions.reset();
    gpu().at_once(call_job<&Job::give>, new std::shared_ptr<Job>(job_));
  }
}

void Evaluation::forget(const Stack& stack) {
  job_ = std::make_shared<Job>(HostOperator(op_, traits_));
  find_operands();
  if (device_ < 0) {
    return;
  }
  stream_ = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
  // Results may share parts with arguments.
  std::vector<std::uint64_t> known;
  for (std::size_t place = 0; place < arguments_.size(); ++place) {
    for_each_tensor(arguments_[place], [&](const at::Tensor& tensor, std::size_t) {
      for (const at::Tensor& part : parts_of(tensor)) {
        if (const auto described = DeviceTensor::describe(part)) {
          known.push_back(described->address());
        }
      }
    });
  }
  const auto add = [&](const c10::IValue& value, bool keeps) {
    for_each_tensor(value, [&](const at::Tensor& tensor, std::size_t) {
      for (const at::Tensor& part : parts_of(tensor)) {
        auto described = DeviceTensor::describe(part);
        if (described &&
            (keeps || std::find(known.begin(), known.end(), described->address()) == known.end())) {
          job_->results.push_back({{std::move(*described), false, 0, 0}, keeps});
        }
      }
    });
  };
  for (const std::size_t place : traits_.written) {
    add(arguments_[place], true);
  }
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    if (!traits_.return_is_argument[i]) {
      add(stack[stack.size() - traits_.returns + i], false);
    }
  }
  job_->computable = false;
  is_given_ = true;
  if (!submit(call_job<&Job::give>)) {
    gpu().at_once(call_job<&Job::give>, new std::shared_ptr<Job>(job_));
  }
}

void Evaluation::collect_results(const Stack& stack) {
  const auto add = [&](const c10::IValue& value, bool of_argument, std::size_t place, bool keeps) {
    for_each_tensor(value, [&](const at::Tensor& tensor, std::size_t i) {
      if (auto described = DeviceTensor::describe(tensor)) {
        job_->result_elements += described->elements();
        job_->results.push_back({{std::move(*described), of_argument, place, i}, keeps});
      }
    });
  };
  const bool unset = traits_.kind == Kind::kUnset;
  for (const std::size_t place : traits_.written) {
    // An argument that is only overwritten has no contents to keep.
    add(arguments_[place], true, place, unset || !op_.schema().arguments()[place].kwarg_only());
  }
  const std::size_t first = stack.size() - traits_.returns;
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    if (!traits_.return_is_argument[i]) {
      add(stack[first + i], false, i, unset);
    }
  }
}

void Evaluation::choose() {
  Job& job = *job_;
  if (job.ran || !job.computable) {
    return;
  }
  const auto most = [&](std::int64_t elements) {
    return job.input_elements <= elements && job.result_elements <= elements;
  };
  job.value_if_known = most(traits_.costly ? kMaxCostlyElements : kMaxElements);
  const bool gives_numbers =
      std::any_of(job.results.begin(), job.results.end(),
                  [](const Job::Result& result) { return is_number(result.slot.layout); });
  const bool agrees = job.agrees || (!gives_numbers && !job.positions);
  job.value_if_unknown = job.takes_unknown && (agrees ? most(kMaxUnknownElements)
                                                      : most(kMaxUnknownNumbers) && !job.positions);
  // In eager mode it is known by now.
  const bool in_vain = job.taken && !job.has_value_if_taken();
  if (in_vain) {
    job.computable = false;
    return;
  }
  job.computable = job.host.take_arguments(arguments_, job_->operands);
}

void Evaluation::fit_results(Stack& stack) {
  const std::size_t first = stack.size() - traits_.returns;
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    c10::IValue& result = stack[first + i];
    if (result.isBool()) {
      result = job_->host.result(i);
    }
    if (!result.isTensor() || traits_.return_is_argument[i] || !result.toTensor().is_cuda()) {
      continue;
    }
    const at::Tensor& there = result.toTensor();
    const at::Tensor host = job_->host.result(i).toTensor();
    if (there.sizes() != host.sizes()) {
      result = at::Tensor(at::detail::empty_cuda(host.sizes(), there.options()));
    }
  }
}

}  // namespace ferro::values
