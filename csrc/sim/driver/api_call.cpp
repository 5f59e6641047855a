#include "sim/driver/api_call.h"

namespace ferro::sim {

ApiCall::ApiCall(FunctionId function, std::size_t bytes, Needs needs)
    : guard_(Machine::lock()), function_(function), bytes_(bytes) {
  if (Machine::forked()) {
    result_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  machine_ = &Machine::current();
  const MachineConfig& config = machine_->config();
  if (const auto ended = machine_->thread().last_call_ended) {
    machine_->scheduler().spend(config.program_factor * (config.processor_time() - *ended));
  }
  machine_->scheduler().take_turn();
  if (const auto fault = machine_->faults().check(function, bytes)) {
    result_ = *fault;
    return;
  }
  if (needs == Needs::kNothing) {
    return;
  }
  context_ = machine_->current_context();
  if (context_ != nullptr) {
    result_ = context_->sticky_error;
  } else if (needs == Needs::kContext) {
    result_ = CUDA_ERROR_INVALID_CONTEXT;
  }
}

ApiCall::~ApiCall() {
  if (machine_ != nullptr) {
    const double microseconds = machine_->counters().add(
        function_, bytes_, handles_, result_ != CUDA_SUCCESS && result_ != CUDA_ERROR_NOT_READY);
    machine_->scheduler().spend(microseconds);
    if (const MachineConfig& config = machine_->config(); config.program_factor != 0) {
      machine_->thread().last_call_ended = config.processor_time();
    }
  }
}

}  // namespace ferro::sim
