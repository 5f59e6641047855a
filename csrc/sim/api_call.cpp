#include "sim/api_call.h"

#include <ctime>
#include <optional>

namespace ferro::sim {
namespace {

// Of the calling thread, in microseconds.
double processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// By `processor_time`, the end of this thread's last call.
thread_local std::optional<double> last_call_ended;

}  // namespace

ApiCall::ApiCall(FunctionId function, std::size_t bytes, Needs needs)
    : guard_(Machine::lock()), function_(function), bytes_(bytes) {
  if (Machine::forked()) {
    result_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  machine_ = &Machine::current();
  if (const double factor = machine_->config().program_factor; factor != 0 && last_call_ended) {
    machine_->scheduler().spend(factor * (processor_time() - *last_call_ended));
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
    if (machine_->config().program_factor != 0) {
      last_call_ended = processor_time();
    }
  }
}

}  // namespace ferro::sim
