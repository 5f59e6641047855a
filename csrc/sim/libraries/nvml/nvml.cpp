// NVML, as far as PyTorch and its programs use it: the cards, their memory, the processes that hold
// it, the links between them. NVML lists all cards, also those that CUDA hides from the process.
//
// No wheel that torch depends on contains its header, so the few declarations are here.
#include "sim/libraries/cuda/cards.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#define FERRO_SIM_NVML extern "C" __attribute__((visibility("default"))) Result

namespace {

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotFound = 6,
  kInsufficientSize = 7,
  kVersionMismatch = 25,
};

// A handle is the index of the card, from 1 on.
using Handle = struct HandleObject*;

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemory2 = sizeof(Memory2) | 2U << 24;

struct Pci2 {
  char bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
};
struct Pci3 {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct Process1 {
  unsigned process;
  unsigned long long bytes;
};
struct Process2 {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kNoInstance = ~0U;

// The first member of a structure; its low 24 bits are the size of the structure. In every version,
// zeros in the other members mean that the card is in no fabric.
using StructVersion = unsigned;
constexpr std::size_t kMaxFabric = 256;

constexpr int kDriver = 13000;
constexpr int kNvLink = 2;  // among the capabilities between two cards
constexpr int kUnknownCapability = 6;
constexpr int kStatusNotSupported = 5;

std::atomic<int> uses{0};

struct Found {
  Result result = kSuccess;
  int index = 0;
  FerroSimCard card{};
};

Result ready(const void* out) {
  if (uses.load() == 0) {
    return kUninitialized;
  }
  return out == nullptr ? kInvalidArgument : kSuccess;
}

Found find(Handle handle, const void* out) {
  Found found;
  found.result = ready(out);
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (found.result == kSuccess &&
      (number == 0 || number > static_cast<std::uintptr_t>(ferro_sim_card_count()))) {
    found.result = kInvalidArgument;
  }
  if (found.result == kSuccess) {
    found.index = static_cast<int>(number) - 1;
    ferro_sim_card(found.index, &found.card);
  }
  return found;
}

Handle handle_of(int index) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(index) + 1);
}

Result write_text(const std::string& text, char* out, unsigned size) {
  if (const Result result = ready(out); result != kSuccess) {
    return result;
  }
  if (text.size() >= size) {
    return kInsufficientSize;
  }
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

template <typename Process>
Result list_processes(Handle handle, unsigned* count, Process* out) {
  const Found found = find(handle, count);
  if (found.result != kSuccess) {
    return found.result;
  }
  std::vector<FerroSimHolder> holders(1024);
  holders.resize(ferro_sim_card_holders(found.index, holders.data(), holders.size()));
  const unsigned room = *count;
  *count = static_cast<unsigned>(holders.size());
  if (room < holders.size()) {
    return kInsufficientSize;
  }
  for (std::size_t i = 0; i < holders.size(); ++i) {
    out[i].process = static_cast<unsigned>(holders[i].process);
    out[i].bytes = holders[i].bytes;
    if constexpr (sizeof(Process) == sizeof(Process2)) {
      out[i].gpu_instance = out[i].compute_instance = kNoInstance;
    }
  }
  return kSuccess;
}

}  // namespace

FERRO_SIM_NVML nvmlInit_v2() {
  ++uses;
  return kSuccess;
}
FERRO_SIM_NVML nvmlInit() { return nvmlInit_v2(); }
FERRO_SIM_NVML nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

FERRO_SIM_NVML nvmlShutdown() {
  int now = uses.load();
  while (now > 0 && !uses.compare_exchange_weak(now, now - 1)) {
  }
  return now > 0 ? kSuccess : kUninitialized;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kVersionMismatch:
      return "Argument Version Mismatch";
  }
  return static_cast<int>(result) == 3 ? "Not Supported" : "Unknown Error";
}

FERRO_SIM_NVML nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return write_text("580.0.0", out, size);
}
FERRO_SIM_NVML nvmlSystemGetNVMLVersion(char* out, unsigned size) {
  return write_text("13.580.0.0", out, size);
}
FERRO_SIM_NVML nvmlSystemGetCudaDriverVersion_v2(int* out) {
  if (out == nullptr) {
    return kInvalidArgument;
  }
  *out = kDriver;
  return kSuccess;
}
FERRO_SIM_NVML nvmlSystemGetCudaDriverVersion(int* out) {
  return nvmlSystemGetCudaDriverVersion_v2(out);
}

FERRO_SIM_NVML nvmlDeviceGetCount_v2(unsigned* out) {
  if (const Result result = ready(out); result != kSuccess) {
    return result;
  }
  *out = static_cast<unsigned>(ferro_sim_card_count());
  return kSuccess;
}
FERRO_SIM_NVML nvmlDeviceGetCount(unsigned* out) { return nvmlDeviceGetCount_v2(out); }

FERRO_SIM_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* out) {
  if (const Result result = ready(out); result != kSuccess) {
    return result;
  }
  if (index >= static_cast<unsigned>(ferro_sim_card_count())) {
    return kInvalidArgument;
  }
  *out = handle_of(static_cast<int>(index));
  return kSuccess;
}
FERRO_SIM_NVML nvmlDeviceGetHandleByIndex(unsigned index, Handle* out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}

FERRO_SIM_NVML nvmlDeviceGetHandleByUUID(const char* uuid, Handle* out) {
  if (const Result result = ready(out); result != kSuccess || uuid == nullptr) {
    return result == kSuccess ? kInvalidArgument : result;
  }
  for (int i = 0; i < ferro_sim_card_count(); ++i) {
    FerroSimCard card;
    ferro_sim_card(i, &card);
    if (std::string_view(card.uuid) == uuid) {
      *out = handle_of(i);
      return kSuccess;
    }
  }
  return kNotFound;
}

FERRO_SIM_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* text, Handle* out) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (const Result result = ready(out); result != kSuccess) {
    return result;
  }
  if (text == nullptr || std::sscanf(text, "%x:%x", &domain, &bus) != 2) {
    return kInvalidArgument;
  }
  for (int i = 0; i < ferro_sim_card_count(); ++i) {
    FerroSimCard card;
    ferro_sim_card(i, &card);
    if (domain == 0 && static_cast<unsigned>(card.pci_bus) == bus) {
      *out = handle_of(i);
      return kSuccess;
    }
  }
  return kNotFound;
}
FERRO_SIM_NVML nvmlDeviceGetHandleByPciBusId(const char* text, Handle* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

FERRO_SIM_NVML nvmlDeviceGetIndex(Handle handle, unsigned* out) {
  const Found found = find(handle, out);
  if (found.result == kSuccess) {
    *out = static_cast<unsigned>(found.index);
  }
  return found.result;
}

FERRO_SIM_NVML nvmlDeviceGetMinorNumber(Handle handle, unsigned* out) {
  return nvmlDeviceGetIndex(handle, out);
}

FERRO_SIM_NVML nvmlDeviceGetName(Handle handle, char* out, unsigned size) {
  const Found found = find(handle, out);
  return found.result == kSuccess ? write_text(found.card.name, out, size) : found.result;
}

FERRO_SIM_NVML nvmlDeviceGetUUID(Handle handle, char* out, unsigned size) {
  const Found found = find(handle, out);
  return found.result == kSuccess ? write_text(found.card.uuid, out, size) : found.result;
}

FERRO_SIM_NVML nvmlDeviceGetPciInfo_v3(Handle handle, Pci3* out) {
  const Found found = find(handle, out);
  if (found.result == kSuccess) {
    *out = {};
    out->bus = static_cast<unsigned>(found.card.pci_bus);
    std::snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "0000:%02X:00.0", out->bus);
    std::snprintf(out->bus_id, sizeof(out->bus_id), "00000000:%02X:00.0", out->bus);
  }
  return found.result;
}

FERRO_SIM_NVML nvmlDeviceGetPciInfo_v2(Handle handle, Pci2* out) {
  const Found found = find(handle, out);
  if (found.result == kSuccess) {
    *out = {};
    out->bus = static_cast<unsigned>(found.card.pci_bus);
    std::snprintf(out->bus_id, sizeof(out->bus_id), "0000:%02X:00.0", out->bus);
  }
  return found.result;
}

FERRO_SIM_NVML nvmlDeviceGetMemoryInfo(Handle handle, Memory* out) {
  const Found found = find(handle, out);
  if (found.result == kSuccess) {
    const auto total = found.card.total_bytes;
    *out = {total, total - found.card.used_bytes, found.card.used_bytes};
  }
  return found.result;
}

FERRO_SIM_NVML nvmlDeviceGetMemoryInfo_v2(Handle handle, Memory2* out) {
  const Found found = find(handle, out);
  if (found.result != kSuccess) {
    return found.result;
  }
  if (out->version != kMemory2) {
    return kVersionMismatch;
  }
  const auto total = found.card.total_bytes;
  *out = {kMemory2, total, 0, total - found.card.used_bytes, found.card.used_bytes};
  return kSuccess;
}

FERRO_SIM_NVML nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  const Found found = find(handle, minor == nullptr ? nullptr : major);
  if (found.result == kSuccess) {
    *major = found.card.compute_major;
    *minor = found.card.compute_minor;
  }
  return found.result;
}

// Ampere, Ada and Hopper have the numbers 7, 8 and 9.
FERRO_SIM_NVML nvmlDeviceGetArchitecture(Handle handle, unsigned* out) {
  const Found found = find(handle, out);
  if (found.result == kSuccess) {
    const bool ampere = found.card.compute_major == 8 && found.card.compute_minor < 9;
    *out = ampere ? 7 : static_cast<unsigned>(found.card.compute_major == 8 ? 8 : 9);
  }
  return found.result;
}

// Cards of one host, each on a bus of its own.
FERRO_SIM_NVML nvmlDeviceGetTopologyCommonAncestor(Handle one, Handle other, int* out) {
  constexpr int kSame = 0;
  constexpr int kNode = 40;
  const Found a = find(one, out);
  const Found b = find(other, out);
  if (a.result == kSuccess && b.result == kSuccess) {
    *out = a.index == b.index ? kSame : kNode;
  }
  return a.result == kSuccess ? b.result : a.result;
}

FERRO_SIM_NVML nvmlDeviceGetP2PStatus(Handle one, Handle other, int capability, int* out) {
  const Found a = find(one, out);
  const Found b = find(other, out);
  const Result result = a.result == kSuccess ? b.result : a.result;
  if (result != kSuccess) {
    return result;
  }
  if (a.index == b.index || capability < 0 || capability >= kUnknownCapability) {
    return kInvalidArgument;
  }
  *out = capability == kNvLink && a.card.has_nvlink == 0 ? kStatusNotSupported : 0;
  return kSuccess;
}

FERRO_SIM_NVML nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, Process1* out) {
  return list_processes(handle, count, out);
}
FERRO_SIM_NVML nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count,
                                                       Process2* out) {
  return list_processes(handle, count, out);
}
FERRO_SIM_NVML nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count,
                                                       Process2* out) {
  return list_processes(handle, count, out);
}

FERRO_SIM_NVML nvmlDeviceGetGpuFabricInfoV(Handle handle, StructVersion* out) {
  const Found found = find(handle, out);
  if (found.result != kSuccess) {
    return found.result;
  }
  const std::size_t size = *out & 0xffffff;
  if (size < sizeof(*out) || size > kMaxFabric) {
    return kVersionMismatch;
  }
  std::memset(out + 1, 0, size - sizeof(*out));
  return kSuccess;
}
