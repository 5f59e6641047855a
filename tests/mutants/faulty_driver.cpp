// Planted faults of the allocator, for tests that prove that the seeded programs would find them;
// and a driver with fewer features, "no_virtual_memory", which is not a fault.
//
// `plant(table, name)` replaces functions in the table through which the allocator talks to the
// driver. The allocator's code is unchanged: for the device, a wait that returns at once equals an
// allocator that forgot to wait. Call it once, before the first allocation.
#include "ferro/driver/cuda_api.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

ferro::CudaApi original;
std::mutex mutex;

// Memory is reused although the stream that used it is not done.
CUresult complete_at_once(CUevent) { return CUDA_SUCCESS; }

// The host goes on without waiting.
CUresult wait_for_nothing(CUevent) { return CUDA_SUCCESS; }

// A stream goes on without waiting for another one.
CUresult hold_back_nothing(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }

// Pages are unmapped after a point that was never recorded, so the host does not wait. Events whose
// state is queried are recorded first, which is late and always safe.
std::map<CUevent, std::function<CUresult()>> unrecorded;
CUresult postpone_record(CUevent event, CUstream stream) {
  const std::lock_guard lock(mutex);
  unrecorded[event] = [event, stream] { return original.event_record(event, stream); };
  return CUDA_SUCCESS;
}
CUresult postpone_context_record(CUcontext context, CUevent event) {
  const std::lock_guard lock(mutex);
  unrecorded[event] = [context, event] { return original.ctx_record_event(context, event); };
  return CUDA_SUCCESS;
}
CUresult record_and_query(CUevent event) {
  const std::lock_guard lock(mutex);
  if (const auto found = unrecorded.find(event); found != unrecorded.end()) {
    const CUresult result = found->second();
    if (result != CUDA_SUCCESS) {
      return result;
    }
    unrecorded.erase(found);
  }
  return original.event_query(event);
}

// One page serves two addresses.
CUresult create_some_twice(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                           const CUmemAllocationProp* properties, unsigned long long flags) {
  static int calls = 0;
  static CUmemGenericAllocationHandle last = 0;
  const std::lock_guard lock(mutex);
  if (++calls % 4 == 0) {
    *handle = last;
    return CUDA_SUCCESS;
  }
  const CUresult result = original.mem_create(handle, bytes, properties, flags);
  last = *handle;
  return result;
}

// Every event is recorded on a stream that has no work.
CUresult record_elsewhere(CUevent event, CUstream) {
  const std::lock_guard lock(mutex);
  static CUstream elsewhere = nullptr;
  if (elsewhere == nullptr) {
    const CUresult result = original.stream_create(&elsewhere, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
      return result;
    }
  }
  return original.event_record(event, elsewhere);
}

// A point of the whole context covers only the work of its legacy stream.
CUresult record_on_legacy_stream(CUcontext, CUevent event) {
  return original.event_record(event, CU_STREAM_LEGACY);
}

// A point of the whole context claims to be complete at once.
std::set<CUevent> context_points;
CUresult record_and_note_point(CUcontext context, CUevent event) {
  const std::lock_guard lock(mutex);
  context_points.insert(event);
  return original.ctx_record_event(context, event);
}
CUresult record_and_forget_point(CUevent event, CUstream stream) {
  const std::lock_guard lock(mutex);
  context_points.erase(event);
  return original.event_record(event, stream);
}
CUresult complete_points_at_once(CUevent event) {
  const std::lock_guard lock(mutex);
  return context_points.contains(event) ? CUDA_SUCCESS : original.event_query(event);
}

// Captures go unnoticed.
CUresult see_no_capture(CUstream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph*,
                        const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  *id = 0;
  return CUDA_SUCCESS;
}

// Pages are reused while they are still mapped at their old addresses.
CUresult leave_mapped(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }

// A page that moves is replaced by another page, which also keeps its address.
CUresult map_another(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  static std::set<CUmemGenericAllocationHandle> known;
  static std::map<std::size_t, CUmemGenericAllocationHandle> last;  // mapped, by size
  const std::lock_guard lock(mutex);
  const bool moves = !known.insert(handle).second;
  CUmemGenericAllocationHandle& other = last[bytes];
  if (moves && other != 0) {
    return original.mem_map(at, bytes, offset, other, flags);
  }
  other = handle;
  return original.mem_map(at, bytes, offset, handle, flags);
}

// Where handles are taken to be, and which was at an address last.
struct Place {
  CUmemGenericAllocationHandle handle;
  std::size_t bytes;
};
std::map<CUdeviceptr, Place> mapped;
std::map<CUdeviceptr, Place> before;
bool is_mapped(CUmemGenericAllocationHandle handle) {
  return std::ranges::any_of(mapped, [&](const auto& at) { return at.second.handle == handle; });
}
CUresult unmap_and_note(CUdeviceptr at, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto end = mapped.lower_bound(at + bytes);
  for (auto place = mapped.lower_bound(at); place != end; place = mapped.erase(place)) {
    before[place->first] = place->second;
  }
  return original.mem_unmap(at, bytes);
}

// A result keeps the page that other graphs of its group use as scratch.
CUresult keep_shared_page(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const std::lock_guard lock(mutex);
  const auto last = before.find(at);
  const bool exchanges = last != before.end() && last->second.bytes == bytes &&
                         !is_mapped(handle) && is_mapped(last->second.handle);
  mapped[at] = {handle, bytes};
  return original.mem_map(at, bytes, offset, exchanges ? last->second.handle : handle, flags);
}

// A capture maps a page of its group's scratch twice.
CUresult map_scratch_twice(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const std::lock_guard lock(mutex);
  const auto below = mapped.find(at - bytes);
  const bool doubles = is_mapped(handle) && below != mapped.end() && below->second.bytes == bytes;
  const CUmemGenericAllocationHandle other = doubles ? below->second.handle : handle;
  mapped[at] = {handle, bytes};
  return original.mem_map(at, bytes, offset, other, flags);
}

// Simulates cards and systems without virtual memory management.
CUresult without_virtual_memory(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *value = 0;
    return CUDA_SUCCESS;
  }
  return original.device_get_attribute(value, attribute, device);
}

}  // namespace

// Returns 0 when the fault is planted, 1 when the name is unknown.
extern "C" int plant(std::uintptr_t table, const char* name) {
  auto& api = *reinterpret_cast<ferro::CudaApi*>(table);
  original = api;
  const auto is = [name](const char* known) { return std::strcmp(name, known) == 0; };
  if (is("reuse_before_event")) {
    api.event_query = complete_at_once;
  } else if (is("missing_wait")) {
    api.event_synchronize = wait_for_nothing;
  } else if (is("missing_stream_wait")) {
    api.stream_wait_event = hold_back_nothing;
  } else if (is("early_unmap")) {
    api.event_record = postpone_record;
    if (original.ctx_record_event != nullptr) {
      api.ctx_record_event = postpone_context_record;
    }
    api.event_query = record_and_query;
    api.event_synchronize = wait_for_nothing;
  } else if (is("lost_page")) {
    api.mem_create = create_some_twice;
  } else if (is("mixed_up_move")) {
    api.mem_map = map_another;
  } else if (is("wrong_stream")) {
    api.event_record = record_elsewhere;
  } else if (is("own_stream_point")) {
    api.ctx_record_event = record_on_legacy_stream;
  } else if (is("early_context_point")) {
    api.ctx_record_event = record_and_note_point;
    api.event_record = record_and_forget_point;
    api.event_query = complete_points_at_once;
  } else if (is("unseen_capture")) {
    api.stream_get_capture_info = see_no_capture;
  } else if (is("missing_unmap")) {
    api.mem_unmap = leave_mapped;
  } else if (is("result_on_scratch")) {
    api.mem_map = keep_shared_page;
    api.mem_unmap = unmap_and_note;
  } else if (is("scratch_twice")) {
    api.mem_map = map_scratch_twice;
    api.mem_unmap = unmap_and_note;
  } else if (is("no_virtual_memory")) {
    api.device_get_attribute = without_virtual_memory;
  } else {
    return 1;
  }
  return 0;
}
