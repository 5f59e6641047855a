#include "values/gpu.h"

#include <c10/cuda/CUDAStream.h>

#include <dlfcn.h>
#include <stdexcept>
#include <string>

namespace ferro::values {
namespace {

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("there is no simulated GPU in this process: no ") + name);
  }
}

}  // namespace

namespace detail {
Gpu found_gpu{};
}  // namespace detail

void find_gpu() {
  Gpu& gpu = detail::found_gpu;
  find(gpu.in_order, "ferro_sim_in_order");
  find(gpu.in_order_if_eager, "ferro_sim_in_order_if_eager");
  find(gpu.at_once, "ferro_sim_at_once");
  find(gpu.least_certainty, "ferro_sim_least_certainty");
  find(gpu.take_pieces, "ferro_sim_take_pieces");
  find(gpu.release, "ferro_sim_release");
  find(gpu.hold, "ferro_sim_hold");
  find(gpu.exchange, "ferro_sim_exchange");
  find(gpu.write, "ferro_sim_write");
  find(gpu.originate, "ferro_sim_originate");
  find(gpu.origins, "ferro_sim_origins");
  find(gpu.doubts, "ferro_sim_doubts");
  find(gpu.forget, "ferro_sim_forget");
  find(gpu.forget_in_replays, "ferro_sim_forget_in_replays");
  find(gpu.answer, "ferro_sim_answer");
  find(gpu.end_answer, "ferro_sim_end_answer");
  find(gpu.on_read_back, "ferro_sim_on_read_back");
  find(gpu.observe_outside, "ferro_sim_observe_outside");
  find(gpu.counts, "ferro_sim_counts");
  find(gpu.kernel, "ferro_sim_kernel");
  find(gpu.launch, "ferro_sim_launch");
  find(gpu.fail_assertion, "ferro_sim_fail_assertion");
}

void* current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

}  // namespace ferro::values
