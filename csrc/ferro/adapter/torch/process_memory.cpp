#include "ferro/adapter/torch/process_memory.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAException.h>

#include <array>
#include <dlfcn.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace ferro {
namespace {

// The few declarations of NVML that are used here; its header is not part of the CUDA runtime.
using NvmlDevice = struct NvmlDeviceObject*;
struct NvmlProcess {
  unsigned int pid;
  unsigned long long used_bytes;  // all ones: unknown to the driver
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kUnknown = ~0ULL;

struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_pci_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*compute_processes)(NvmlDevice, unsigned int*, NvmlProcess*) = nullptr;
};

// Members are null without a working NVML.
Nvml load() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {};
  }
  Nvml nvml;
  const auto find = [library](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    return function != nullptr;
  };
  const bool complete = find(nvml.init, "nvmlInit_v2") &&
                        find(nvml.device_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
                        find(nvml.compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  return complete && nvml.init() == kSuccess ? nvml : Nvml{};
}

std::vector<NvmlProcess> processes_on(const Nvml& nvml, NvmlDevice device) {
  std::vector<NvmlProcess> processes(8);
  for (;;) {
    auto count = static_cast<unsigned int>(processes.size());
    const int result = nvml.compute_processes(device, &count, processes.data());
    if (result == kInsufficientSize && count > processes.size()) {
      processes.resize(count);
      continue;
    }
    processes.resize(result == kSuccess ? count : 0);
    return processes;
  }
}

}  // namespace

std::string process_memory_lines(int device) {
  static const Nvml nvml = load();
  std::array<char, 32> bus_id{};
  NvmlDevice handle = nullptr;
  if (nvml.compute_processes == nullptr ||
      C10_CUDA_ERROR_HANDLED(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()),
                                                   device)) != cudaSuccess ||
      nvml.device_by_pci_bus_id(bus_id.data(), &handle) != kSuccess) {
    return "";
  }
  std::string lines;
  for (const NvmlProcess& process : processes_on(nvml, handle)) {
    if (process.used_bytes != kUnknown) {
      lines += process.pid == static_cast<unsigned int>(getpid())
                   ? "Including non-PyTorch memory, this process"
                   : "Process " + std::to_string(process.pid);
      lines +=
          " has " + c10::CachingAllocator::format_size(process.used_bytes) + " memory in use. ";
    }
  }
  return lines;
}

}  // namespace ferro
