// The frame of a driver function.
//
//   CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
//     FERRO_SIM_CALL(0);
//     return call.finish(call.machine().space().release(handle));
//   }
//
// The frame takes the machine's lock, starts a machine when there is none, counts the call, gives
// queued work a turn, and returns early with a planned fault, the sticky error of the current
// context, or NOT_INITIALIZED in a forked child.
#pragma once

#include "sim/machine/machine.h"

// Driver functions are visible in the shared library; a program that links them statically does not
// export them.
#define FERRO_SIM_API extern "C" __attribute__((visibility("default"))) CUresult

namespace ferro::sim {

class ApiCall {
 public:
  enum class Needs : std::uint8_t { kNothing, kHealth, kContext };

  ApiCall(FunctionId function, std::size_t bytes, Needs needs);
  ~ApiCall();
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;

  bool refused() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  // Remembers the outcome for the counters.
  CUresult finish(CUresult result) {
    result_ = result;
    return result;
  }
  void set_handles(std::size_t handles) { handles_ = handles; }
  void set_bytes(std::size_t bytes) { bytes_ = bytes; }

  Machine& machine() { return *machine_; }
  // Only for calls that need a context.
  Context& context() { return *context_; }
  Device& device() { return machine_->device(context_->device); }

 private:
  const std::lock_guard<std::mutex> guard_;
  const FunctionId function_;
  std::size_t bytes_;
  std::size_t handles_ = 0;
  CUresult result_ = CUDA_SUCCESS;
  Machine* machine_ = nullptr;
  Context* context_ = nullptr;
};

}  // namespace ferro::sim

#define FERRO_SIM_FRAME(bytes, needs)                                                         \
  static const ferro::sim::FunctionId ferro_sim_function = ferro::sim::function_id(__func__); \
  ferro::sim::ApiCall call(ferro_sim_function, (bytes), ferro::sim::ApiCall::Needs::needs);   \
  if (call.refused()) return call.result()

// Succeeds even after the device has failed.
#define FERRO_SIM_QUERY() FERRO_SIM_FRAME(0, kNothing)
#define FERRO_SIM_CALL(bytes) FERRO_SIM_FRAME(bytes, kHealth)
#define FERRO_SIM_CONTEXT_CALL(bytes) FERRO_SIM_FRAME(bytes, kContext)
