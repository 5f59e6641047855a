// Driver functions: memory of cuMemAlloc and events shared with other processes by handles.
#include "sim/driver/submission.h"

#include <cstring>
#include <unistd.h>

using ferro::sim::Access;
using ferro::sim::Event;
using ferro::sim::Machine;
using ferro::sim::SharedFile;

namespace {

constexpr char kMemoryMagic[8] = "fsimmem";
constexpr char kEventMagic[8] = "fsimevt";

// The contents of the 64 bytes of a memory handle.
struct MemoryHandle {
  char magic[8];
  std::uint64_t file_id;
  std::int32_t process;
  std::int32_t descriptor;
  std::uint64_t offset;  // of the allocation in the file
};
static_assert(sizeof(MemoryHandle) <= sizeof(CUipcMemHandle));

struct EventHandle {
  char magic[8];
  std::int32_t process;
  std::int32_t card;
};
static_assert(sizeof(EventHandle) <= sizeof(CUipcEventHandle));

CUresult export_memory(Machine& machine, CUipcMemHandle* out, CUdeviceptr at) {
  CUdeviceptr base = 0;
  const auto* mapping = machine.space().find_mapping(at, &base);
  if (out == nullptr || mapping == nullptr || !mapping->plain || mapping->pages->imported()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto range = machine.device(mapping->pages->device()).allocations.find(at);
  if (!range) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const SharedFile* file = mapping->pages->share(machine.device(mapping->pages->device()).card,
                                                 machine.config().backing);
  if (file == nullptr) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  MemoryHandle handle{};
  std::memcpy(handle.magic, kMemoryMagic, sizeof(kMemoryMagic));
  handle.file_id = file->id();
  handle.process = getpid();
  handle.descriptor = file->descriptor();
  handle.offset = range->base - base;
  std::memset(out, 0, sizeof(*out));
  std::memcpy(out, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult import_memory(ferro::sim::ApiCall& call, CUdeviceptr* out, const CUipcMemHandle& bytes) {
  Machine& machine = call.machine();
  MemoryHandle handle{};
  std::memcpy(&handle, &bytes, sizeof(handle));
  if (out == nullptr || std::memcmp(handle.magic, kMemoryMagic, sizeof(kMemoryMagic)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The process that owns the memory cannot open it.
  if (handle.process == getpid()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  for (auto& [base, opened] : machine.opened_memory()) {
    if (opened.file_id == handle.file_id) {
      ++opened.references;
      *out = base + handle.offset;
      return CUDA_SUCCESS;
    }
  }
  std::optional<SharedFile> file =
      SharedFile::open(handle.process, handle.descriptor, handle.file_id);
  const std::optional<int> device = file ? machine.device_of(file->card()) : std::nullopt;
  if (!device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t size = file->bytes();
  const int owner = *device;
  auto pages =
      std::make_shared<ferro::sim::Pages>(std::move(*file), owner, machine.config().backing);
  const auto base = machine.space().reserve(size, ferro::sim::kGranularity);
  if (!base) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::array<Access, ferro::sim::kMaxDevices> access{};
  access[static_cast<std::size_t>(owner)] = Access::kReadWrite;
  access[static_cast<std::size_t>(call.context().device)] = Access::kReadWrite;
  machine.space().map_plain(*base, std::move(pages), access);
  machine.opened_memory().emplace(*base, Machine::OpenedMemory{handle.file_id, size, 1});
  *out = *base + handle.offset;
  return CUDA_SUCCESS;
}

CUresult close_memory(Machine& machine, CUdeviceptr at) {
  auto& all = machine.opened_memory();
  auto found = all.upper_bound(at);
  if (found == all.begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --found;
  if (at - found->first >= found->second.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second.references == 0) {
    machine.scheduler().run_all();
    machine.space().unmap_plain(found->first);
    machine.space().unreserve(found->first, found->second.bytes);
    all.erase(found);
  }
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr at) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(export_memory(call.machine(), out, at));
}

FERRO_SIM_API cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  if ((flags & ~static_cast<unsigned>(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) != 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  return call.finish(import_memory(call, out, handle));
}

// Waits for all work, as the driver does.
FERRO_SIM_API cuIpcCloseMemHandle(CUdeviceptr at) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(close_memory(call.machine(), at));
}

// Work before the event's last record is done when this returns, and work before a later record is
// done when that record returns, so an event of another process is always complete.
FERRO_SIM_API cuIpcGetEventHandle(CUipcEventHandle* out, CUevent handle) {
  FERRO_SIM_CONTEXT_CALL(0);
  const auto event = call.machine().find_event(handle);
  if (out == nullptr || event == nullptr || (event->flags & CU_EVENT_INTERPROCESS) == 0) {
    return call.finish(event == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
  }
  event->exported = true;
  const ferro::sim::OperationPtr operation = event->operation;
  call.machine().scheduler().run_until_done({&operation, 1});
  EventHandle fields{};
  std::memcpy(fields.magic, kEventMagic, sizeof(kEventMagic));
  fields.process = getpid();
  fields.card = call.machine().device(event->context->device).card;
  std::memset(out, 0, sizeof(*out));
  std::memcpy(out, &fields, sizeof(fields));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  FERRO_SIM_CONTEXT_CALL(0);
  EventHandle fields{};
  std::memcpy(&fields, &handle, sizeof(fields));
  const std::optional<int> device = call.machine().device_of(fields.card);
  if (out == nullptr || std::memcmp(fields.magic, kEventMagic, sizeof(kEventMagic)) != 0 ||
      !device) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (fields.process == getpid()) {
    return call.finish(CUDA_ERROR_INVALID_CONTEXT);
  }
  auto event = std::make_shared<Event>();
  event->context = &call.machine().device(*device).context;
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->recorded = true;
  event->exported = true;
  *out = reinterpret_cast<CUevent>(event.get());
  event->context->events.emplace(event.get(), std::move(event));
  return CUDA_SUCCESS;
}
