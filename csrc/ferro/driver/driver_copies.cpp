// Copies between device and host.
#include "ferro/driver/call_scope.h"
#include "ferro/driver/driver.h"
#include "ferro/driver/error.h"

namespace ferro {

CUstream Driver::copy_stream() {
  const MutexLock lock(copy_mutex_);
  if (copy_stream_ == nullptr) {
    expect(api_.stream_create(&copy_stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  return copy_stream_;
}

bool Driver::lock_host_memory(void* begin, std::size_t bytes) {
  const CallScope scope(*this);
  return api_.mem_host_register(begin, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
}

void Driver::unlock_host_memory(void* begin) noexcept {
  try {
    const CallScope scope(*this);
    api_.mem_host_unregister(begin);
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the device is lost
  }
}

void Driver::copy_to_host(void* to, DevicePtr from, std::size_t bytes) {
  const CallScope scope(*this);
  count(DriverCall::kCopy);
  expect(api_.memcpy_dtoh_async(to, raw(from), bytes, copy_stream()), "cuMemcpyDtoHAsync", bytes);
}

void Driver::copy_to_device(DevicePtr to, const void* from, std::size_t bytes) {
  const CallScope scope(*this);
  count(DriverCall::kCopy);
  expect(api_.memcpy_htod_async(raw(to), from, bytes, copy_stream()), "cuMemcpyHtoDAsync", bytes);
}

void Driver::record_copies(EventId event) {
  const CallScope scope(*this);
  count(DriverCall::kEventRecord);
  expect(api_.event_record(reinterpret_cast<CUevent>(event), copy_stream()), "cuEventRecord");
}

void Driver::wait_for_copies() {
  const CallScope scope(*this);
  expect(api_.stream_synchronize(copy_stream()), "cuStreamSynchronize");
}

}  // namespace ferro
