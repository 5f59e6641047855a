// Driver functions: the library and the devices.
#include "sim/driver/api_call.h"
#include "sim/settings/device_attributes.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

using ferro::sim::Machine;

namespace {

bool is_device(Machine& machine, CUdevice device) {
  return device >= 0 && device < machine.device_count();
}

int card_of(Machine& machine, CUdevice device) { return machine.device(device).card; }

}  // namespace

FERRO_SIM_API cuInit(unsigned flags) {
  FERRO_SIM_QUERY();
  if (flags != 0) return call.finish(CUDA_ERROR_INVALID_VALUE);
  call.machine().initialise();
  return call.finish(call.machine().device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS);
}

FERRO_SIM_API cuDriverGetVersion(int* version) {
  FERRO_SIM_QUERY();
  if (version == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *version = 13000;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetCount(int* count) {
  FERRO_SIM_QUERY();
  *count = call.machine().device_count();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGet(CUdevice* device, int ordinal) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), ordinal)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetName(char* name, int length, CUdevice device) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  std::snprintf(name, static_cast<std::size_t>(length), "%s",
                std::string(call.machine().config().card->name).c_str());
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  std::memcpy(uuid->bytes, ferro::sim::device_uuid(card_of(call.machine(), device)).data(),
              sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                ferro::sim::pci_bus(card_of(call.machine(), device)));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  FERRO_SIM_QUERY();
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const int card = static_cast<int>(bus) - ferro::sim::pci_bus(0);
  const std::optional<int> found = call.machine().device_of(card);
  if (!found) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *device = *found;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *bytes = call.machine().device(device).memory.capacity();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FERRO_SIM_QUERY();
  if (value == nullptr || attribute <= 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *value = ferro::sim::device_attribute(call.machine().config(), attribute,
                                        card_of(call.machine(), device));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *major = call.machine().config().card->compute_major;
  *minor = call.machine().config().card->compute_minor;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), device) || !is_device(call.machine(), peer)) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source,
                                      CUdevice target) {
  FERRO_SIM_QUERY();
  if (!is_device(call.machine(), source) || !is_device(call.machine(), target) ||
      source == target) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuDeviceGetLuid(char*, unsigned*, CUdevice) {
  FERRO_SIM_QUERY();
  return call.finish(CUDA_ERROR_NOT_SUPPORTED);
}
