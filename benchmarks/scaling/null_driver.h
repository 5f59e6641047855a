// A CUDA driver whose calls succeed at once and do nothing, so that only the time of the allocator
// itself remains. Handles, events and addresses are counters.
//
// It counts limited resources: the memory of each device and its addresses, which can be reused
// after a free. The addresses of each device start at the same number, as if it were alone in its
// process. No stream captures. Thread-safe.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/driver/cuda_api.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <mutex>
#include <unistd.h>

namespace ferro {

class NullDriver {
 public:
  static constexpr int kDevices = 2;
  // The addresses of a process, for the host and all devices together.
  static constexpr std::size_t kAddresses = std::size_t{128} << 40;

  // Must be called first; afterwards nothing is in use. In bytes, for each device.
  static void start(std::size_t memory, std::size_t addresses) {
    for (Device& device : devices_) {
      const std::lock_guard lock(device.mutex);
      device.memory = memory;
      device.used = 0;
      device.free_addresses = {{kFirstAddress, addresses}};
      device.allocated.clear();
    }
    events_complete_ = true;
  }
  // Whether queried events are complete. A wait for an event always succeeds.
  static void set_events_complete(bool complete) { events_complete_ = complete; }

  static CudaApi table() {
    CudaApi api;
#define FERRO_NULL_DRIVER_SUCCEEDS(member, symbol) \
  api.member = Succeeds<decltype(api.member)>::call;
    FERRO_CUDA_API(FERRO_NULL_DRIVER_SUCCEEDS)
#undef FERRO_NULL_DRIVER_SUCCEEDS
    answer_about_devices(api);
    give_memory(api);
    give_addresses(api);
    answer_about_streams(api);
    return api;
  }

 private:
  template <typename Function>
  struct Succeeds;
  template <typename... Arguments>
  struct Succeeds<CUresult (*)(Arguments...)> {
    static CUresult call(Arguments...) { return CUDA_SUCCESS; }
  };

  struct Device {
    std::mutex mutex;  // of the maps
    std::size_t memory;
    std::atomic<std::size_t> used;
    std::map<CUdeviceptr, std::size_t> free_addresses;  // neighbours are merged
    std::map<CUdeviceptr, std::size_t> allocated;       // by mem_alloc
  };

  static constexpr CUdeviceptr kFirstAddress = std::size_t{1} << 40;
  static constexpr std::size_t kGranularity = 2 * kMiB;
  // A handle contains its size: its number is above so many bits with the number of granules.
  static constexpr int kGranuleBits = 24;

  static CUcontext context_of(int device) {
    return reinterpret_cast<CUcontext>(&devices_[static_cast<std::size_t>(device)]);
  }
  static Device& current() { return *reinterpret_cast<Device*>(current_); }
  static std::uint64_t next() { return counter_.fetch_add(1, std::memory_order_relaxed) + 1; }

  static bool charge(Device& device, std::size_t bytes) {
    if (device.used.fetch_add(bytes) + bytes <= device.memory) {
      return true;
    }
    device.used -= bytes;
    return false;
  }

  // The lowest range that fits; 0 if there is none.
  static CUdeviceptr take_addresses(Device& device, std::size_t bytes, std::size_t alignment) {
    const std::lock_guard lock(device.mutex);
    for (auto range = device.free_addresses.begin(); range != device.free_addresses.end();
         ++range) {
      const auto [base, size] = *range;
      const CUdeviceptr begin = align_up(base, std::max(alignment, kGranularity));
      if (begin + bytes > base + size) {
        continue;
      }
      device.free_addresses.erase(range);
      if (begin != base) {
        device.free_addresses[base] = begin - base;
      }
      if (begin + bytes != base + size) {
        device.free_addresses[begin + bytes] = base + size - (begin + bytes);
      }
      return begin;
    }
    return 0;
  }

  static void put_addresses(Device& device, CUdeviceptr base, std::size_t bytes) {
    const std::lock_guard lock(device.mutex);
    auto range = device.free_addresses.emplace(base, bytes).first;
    if (const auto after = std::next(range);
        after != device.free_addresses.end() && after->first == base + bytes) {
      range->second += after->second;
      device.free_addresses.erase(after);
    }
    if (range != device.free_addresses.begin()) {
      if (const auto before = std::prev(range); before->first + before->second == base) {
        before->second += range->second;
        device.free_addresses.erase(range);
      }
    }
  }

  static void answer_about_devices(CudaApi& api) {
    api.device_get_count = [](int* count) {
      *count = kDevices;
      return CUDA_SUCCESS;
    };
    api.device_get = [](CUdevice* device, int ordinal) {
      *device = ordinal;
      return CUDA_SUCCESS;
    };
    api.device_get_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
      *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
               attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
      return CUDA_SUCCESS;
    };
    api.device_total_mem = [](std::size_t* bytes, CUdevice device) {
      *bytes = devices_[static_cast<std::size_t>(device)].memory;
      return CUDA_SUCCESS;
    };
    api.ctx_record_event = [](CUcontext, CUevent) { return CUDA_SUCCESS; };
    api.primary_ctx_retain = [](CUcontext* context, CUdevice device) {
      *context = context_of(device);
      return CUDA_SUCCESS;
    };
    api.ctx_get_current = [](CUcontext* context) {
      *context = current_;
      return CUDA_SUCCESS;
    };
    api.ctx_set_current = [](CUcontext context) {
      current_ = context;
      return CUDA_SUCCESS;
    };
    api.get_error_name = [](CUresult, const char** name) {
      *name = "an error of the null driver";
      return CUDA_SUCCESS;
    };
  }

  static void give_memory(CudaApi& api) {
    api.mem_get_info = [](std::size_t* free, std::size_t* total) {
      *total = current().memory;
      *free = *total - current().used;
      return CUDA_SUCCESS;
    };
    api.mem_get_granularity = [](std::size_t* bytes, const CUmemAllocationProp*,
                                 CUmemAllocationGranularity_flags) {
      *bytes = kGranularity;
      return CUDA_SUCCESS;
    };
    api.mem_create = [](CUmemGenericAllocationHandle* handle, std::size_t bytes,
                        const CUmemAllocationProp*, unsigned long long) {
      if (!charge(current(), bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      *handle = next() << kGranuleBits | bytes / kGranularity;
      return CUDA_SUCCESS;
    };
    api.mem_release = [](CUmemGenericAllocationHandle handle) {
      current().used -= handle % (1U << kGranuleBits) * kGranularity;
      return CUDA_SUCCESS;
    };
    api.mem_export = [](void* descriptor, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                        unsigned long long) {
      // The caller closes it, so it is a real one.
      static const int kNothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
      *static_cast<int*>(descriptor) = dup(kNothing);
      return CUDA_SUCCESS;
    };
    api.mem_alloc = [](CUdeviceptr* base, std::size_t bytes) {
      Device& device = current();
      const std::size_t size = align_up(bytes, kGranularity);
      if (!charge(device, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      *base = take_addresses(device, size, kGranularity);
      if (*base == 0) {
        device.used -= size;
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      const std::lock_guard lock(device.mutex);
      device.allocated[*base] = size;
      return CUDA_SUCCESS;
    };
    api.mem_free = [](CUdeviceptr base) {
      Device& device = current();
      std::size_t size = 0;
      {
        const std::lock_guard lock(device.mutex);
        const auto found = device.allocated.find(base);
        if (found == device.allocated.end()) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        size = found->second;
        device.allocated.erase(found);
      }
      device.used -= size;
      put_addresses(device, base, size);
      return CUDA_SUCCESS;
    };
  }

  static void give_addresses(CudaApi& api) {
    api.mem_address_reserve = [](CUdeviceptr* base, std::size_t bytes, std::size_t alignment,
                                 CUdeviceptr, unsigned long long) {
      *base = take_addresses(current(), bytes, alignment);
      return *base == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    };
    api.mem_address_free = [](CUdeviceptr base, std::size_t bytes) {
      put_addresses(current(), base, bytes);
      return CUDA_SUCCESS;
    };
  }

  static void answer_about_streams(CudaApi& api) {
    api.event_create = [](CUevent* event, unsigned int) {
      *event = reinterpret_cast<CUevent>(next());
      return CUDA_SUCCESS;
    };
    api.event_query = [](CUevent) {
      return events_complete_ ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    api.stream_is_capturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    api.stream_get_capture_info = [](CUstream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                     CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
                                     std::size_t* dependencies) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
      if (id != nullptr) {
        *id = 0;
      }
      if (dependencies != nullptr) {
        *dependencies = 0;
      }
      return CUDA_SUCCESS;
    };
  }

  static inline std::array<Device, kDevices> devices_;
  static inline thread_local CUcontext current_ = nullptr;
  static inline std::atomic<std::uint64_t> counter_{0};
  static inline std::atomic<bool> events_complete_{true};
};

}  // namespace ferro
