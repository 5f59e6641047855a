#include "ferro/driver/driver.h"

#include "ferro/driver/call_scope.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace ferro {
namespace {

CUmemGenericAllocationHandle raw(PageHandle handle) {
  return static_cast<CUmemGenericAllocationHandle>(handle);
}

bool has_entries(const char* folder) {
  std::error_code error;
  return !std::filesystem::is_empty(folder, error) && !error;
}

CUmemAccessDesc access_for(DeviceId device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

}  // namespace

ContextId Driver::primary_context(DeviceId device) {
  expect(api_.init(0), "cuInit");
  CUdevice handle = 0;
  expect(api_.device_get(&handle, device), "cuDeviceGet");
  CUcontext context = nullptr;
  expect(api_.primary_ctx_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  return to_id(context);
}

bool Driver::has_primary_context(DeviceId device) const {
  unsigned flags = 0;
  int active = 0;
  // A handle of a device is its number, as PyTorch also assumes in hasPrimaryContext.
  expect(api_.primary_ctx_get_state(device, &flags, &active), "cuDevicePrimaryCtxGetState");
  return active != 0;
}

std::vector<DeviceId> Driver::other_devices() const {
  int count = 0;
  expect(api_.device_get_count(&count), "cuDeviceGetCount");
  std::vector<DeviceId> others;
  for (DeviceId device = 0; device < count; ++device) {
    if (device != device_) {
      others.push_back(device);
    }
  }
  return others;
}

CUcontext Driver::context() {
  if (CUcontext known = context_.load(std::memory_order_acquire)) {
    return known;
  }
  const MutexLock lock(context_mutex_);
  if (CUcontext known = context_.load(std::memory_order_relaxed)) {
    return known;
  }
  auto* const created = reinterpret_cast<CUcontext>(primary_context(device_));
  context_.store(created, std::memory_order_release);
  return created;
}

std::string Driver::error_name(CUresult result) const {
  const char* name = nullptr;
  if (api_.get_error_name(result, &name) == CUDA_SUCCESS && name != nullptr) {
    return name;
  }
  return "CUDA error " + std::to_string(static_cast<int>(result));
}

void Driver::refuse(const char* call, CUresult result, std::size_t bytes) const {
  throw DriverError(call, error_name(result), static_cast<int>(result), bytes, device_);
}

Status Driver::expect_memory(CUresult result, const char* call, std::size_t bytes) const {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return Status::kOutOfMemory;
  }
  expect(result, call, bytes);
  return Status::kOk;
}

CUmemAllocationProp Driver::page_properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_;
  return properties;
}

std::size_t Driver::granularity() {
  const CallScope scope(*this);
  const CUmemAllocationProp properties = page_properties();
  std::size_t bytes = 0;
  expect(api_.mem_get_granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
         "cuMemGetAllocationGranularity");
  return bytes;
}

std::size_t Driver::total_memory() const {
  expect(api_.init(0), "cuInit");
  CUdevice device = 0;
  expect(api_.device_get(&device, device_), "cuDeviceGet");
  std::size_t bytes = 0;
  expect(api_.device_total_mem(&bytes, device), "cuDeviceTotalMem");
  return bytes;
}

MemoryInfo Driver::memory_info() {
  const CallScope scope(*this);
  MemoryInfo info;
  expect(api_.mem_get_info(&info.free_bytes, &info.total_bytes), "cuMemGetInfo");
  return info;
}

std::optional<DevicePtr> Driver::reserve(std::size_t bytes, std::size_t alignment, DevicePtr wish) {
  const CallScope scope(*this);
  count(DriverCall::kReserve);
  CUdeviceptr base = 0;
  const CUresult result = api_.mem_address_reserve(&base, bytes, alignment, raw(wish), 0);
  if (expect_memory(result, "cuMemAddressReserve", bytes) == Status::kOutOfMemory) {
    return std::nullopt;
  }
  return DevicePtr{base};
}

bool Driver::unreserve(DevicePtr base, std::size_t bytes) noexcept {
  try {
    const CallScope scope(*this);
    count(DriverCall::kUnreserve);
    return api_.mem_address_free(raw(base), bytes) == CUDA_SUCCESS;
  } catch (const DriverError&) {
    return false;
  }
}

bool Driver::has_attribute(CUdevice_attribute attribute) const {
  int supported = 0;
  const CUresult result = api_.device_get_attribute(&supported, attribute, device_);
  // Older drivers do not know newer attributes.
  if (result != CUDA_ERROR_INVALID_VALUE) {
    expect(result, "cuDeviceGetAttribute");
  }
  return result == CUDA_SUCCESS && supported != 0;
}

unsigned Driver::handle_traits() {
  if (traits_state_.load(std::memory_order_acquire) == TraitsState::kUnknown) {
    const CallScope scope(*this);
    unsigned traits = 0;
    if (has_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      traits |= kDescriptor;
    }
    if (has_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) &&
        has_entries(api_.fabric_channels)) {
      traits |= kFabric;
    }
    if (has_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
      traits |= kRdma;
    }
    traits_.store(traits, std::memory_order_relaxed);
    traits_state_.store(TraitsState::kPromised, std::memory_order_release);
  }
  return traits_.load(std::memory_order_relaxed);
}

CUresult Driver::create_handle(PageHandle* out, std::size_t bytes, unsigned traits) {
  CUmemAllocationProp properties = page_properties();
  unsigned types = 0;
  if ((traits & kDescriptor) != 0) {
    types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if ((traits & kFabric) != 0) {
    types |= CU_MEM_HANDLE_TYPE_FABRIC;
  }
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  properties.allocFlags.gpuDirectRDMACapable = (traits & kRdma) != 0 ? 1 : 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = api_.mem_create(&handle, bytes, &properties, 0);
  *out = PageHandle{handle};
  return result;
}

CUresult Driver::create_first(PageHandle* out, std::size_t bytes, unsigned promised) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  unsigned tried = ~0U;
  for (const unsigned wanted : {kDescriptor | kFabric | kRdma, kDescriptor | kRdma,
                                unsigned{kDescriptor}, unsigned{kRdma}, 0U}) {
    const bool refused = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED;
    const unsigned traits = wanted & promised;
    if (!refused || traits == tried) {
      continue;
    }
    tried = traits;
    result = create_handle(out, bytes, traits);
    if (result == CUDA_SUCCESS) {
      traits_.store(traits, std::memory_order_relaxed);
      traits_state_.store(TraitsState::kSettled, std::memory_order_release);
    }
  }
  return result;
}

std::optional<PageHandle> Driver::create(std::size_t bytes) {
  const unsigned traits = handle_traits();
  const CallScope scope(*this);
  count(DriverCall::kCreate);
  PageHandle handle{};
  const bool settled = traits_state_.load(std::memory_order_acquire) == TraitsState::kSettled;
  const CUresult result =
      settled ? create_handle(&handle, bytes, traits) : create_first(&handle, bytes, traits);
  if (expect_memory(result, "cuMemCreate", bytes) == Status::kOutOfMemory) {
    return std::nullopt;
  }
  return handle;
}

bool Driver::release(PageHandle handle) noexcept {
  try {
    const CallScope scope(*this);
    count(DriverCall::kRelease);
    return api_.mem_release(raw(handle)) == CUDA_SUCCESS;
  } catch (const DriverError&) {
    return false;
  }
}

Status Driver::map(DevicePtr at, std::size_t bytes, PageHandle handle) {
  const CallScope scope(*this);
  count(DriverCall::kMap);
  return expect_memory(api_.mem_map(raw(at), bytes, 0, raw(handle), 0), "cuMemMap", bytes);
}

Status Driver::set_access(DevicePtr at, std::size_t bytes) {
  const CallScope scope(*this);
  count(DriverCall::kSetAccess);
  std::vector<CUmemAccessDesc> access{access_for(device_)};
  for (const DeviceId peer : peers()) {
    access.push_back(access_for(peer));
  }
  return expect_memory(api_.mem_set_access(raw(at), bytes, access.data(), access.size()),
                       "cuMemSetAccess", bytes);
}

bool Driver::add_peer(DeviceId peer) {
  const MutexLock lock(peers_mutex_);
  const bool is_new = std::ranges::find(peers_, peer) == peers_.end();
  if (is_new) {
    peers_.push_back(peer);
  }
  return is_new;
}

void Driver::remove_peer(DeviceId peer) {
  const MutexLock lock(peers_mutex_);
  std::erase(peers_, peer);
}

std::vector<DeviceId> Driver::peers() {
  const MutexLock lock(peers_mutex_);
  return peers_;
}

void Driver::grant(DevicePtr at, std::size_t bytes, DeviceId to) {
  if (!try_grant(at, bytes, to)) {
    refuse("cuMemSetAccess", CUDA_ERROR_INVALID_VALUE, bytes);
  }
}

bool Driver::try_grant(DevicePtr at, std::size_t bytes, DeviceId to) {
  const CallScope scope(*this);
  count(DriverCall::kSetAccess);
  const CUmemAccessDesc access = access_for(to);
  const CUresult result = api_.mem_set_access(raw(at), bytes, &access, 1);
  if (result == CUDA_ERROR_INVALID_VALUE) {
    return false;
  }
  expect(result, "cuMemSetAccess", bytes);
  return true;
}

int Driver::export_page(PageHandle handle) {
  const CallScope scope(*this);
  count(DriverCall::kExport);
  int descriptor = -1;
  expect(api_.mem_export(&descriptor, raw(handle), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         "cuMemExportToShareableHandle");
  return descriptor;
}

PageHandle Driver::import_page(ForeignKind kind, const void* shared) {
  const CallScope scope(*this);
  count(DriverCall::kImport);
  CUmemGenericAllocationHandle handle = 0;
  if (kind == ForeignKind::kFabric) {
    CUmemFabricHandle fabric;
    std::memcpy(&fabric, shared, sizeof(fabric));
    expect(api_.mem_import(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
           "cuMemImportFromShareableHandle");
  } else {
    int descriptor = -1;
    std::memcpy(&descriptor, shared, sizeof(descriptor));
    expect(api_.mem_import(&handle, reinterpret_cast<void*>(std::intptr_t{descriptor}),
                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
           "cuMemImportFromShareableHandle");
  }
  return PageHandle{handle};
}

bool Driver::has_virtual_memory() const {
  expect(api_.init(0), "cuInit");
  return has_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

bool Driver::unmap(DevicePtr at, std::size_t bytes) noexcept {
  try {
    const CallScope scope(*this);
    count(DriverCall::kUnmap);
    return api_.mem_unmap(raw(at), bytes) == CUDA_SUCCESS;
  } catch (const DriverError&) {
    return false;
  }
}

DriverCalls Driver::calls() const {
  DriverCalls calls;
#define FERRO_DRIVER_CALL_READ(constant, name) \
  calls.name =                                 \
      calls_[static_cast<std::size_t>(DriverCall::constant)].load(std::memory_order_relaxed);
  FERRO_DRIVER_CALLS(FERRO_DRIVER_CALL_READ)
#undef FERRO_DRIVER_CALL_READ
  return calls;
}

}  // namespace ferro
