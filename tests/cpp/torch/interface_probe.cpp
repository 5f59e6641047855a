// The allocator interface as C++ programs call it, for tests that load this library with ctypes. It
// uses only the interface that every supported torch has.
//
// Functions that can fail return the error's first line, or null; the text is valid until the
// thread's next call.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

allocator::CUDAAllocator& current() { return *allocator::get(); }

const char* error_of(const std::function<void()>& call) {
  thread_local std::string text;
  try {
    call();
    return nullptr;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  text = text.substr(0, text.find('\n'));
  return text.c_str();
}

// A library that keeps memory until other requests need it.
struct Hoard {
  enum Mode : int { kKeep, kGiveUp, kFail };
  std::mutex mutex;
  int mode = kKeep;
  int calls = 0;
  std::vector<void*> blocks;
};

Hoard& hoard() {
  static Hoard made;
  return made;
}

class GiveUpHoard : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    std::vector<void*> blocks;
    {
      const std::lock_guard lock(hoard().mutex);
      ++hoard().calls;
      if (hoard().mode == Hoard::kFail) {
        throw std::runtime_error("a callback that fails");
      }
      if (hoard().mode == Hoard::kGiveUp) {
        blocks.swap(hoard().blocks);
      }
    }
    for (void* block : blocks) {
      current().raw_delete(block);
    }
    return !blocks.empty();
  }
};

// The number and the bytes of the entries that a tracker received, by action.
constexpr int kActions = 16;
struct Told {
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> bytes{0};
};
std::array<Told, kActions> told;
std::atomic<bool> tracker_fails{false};
std::atomic<std::size_t> tracker_allocates{0};  // bytes; 0: nothing
std::atomic<bool> tracker_always_allocates{false};

// Allocates and frees on the stream of the entry. During other actions native is in an intermediate
// state.
void call_back(const allocator::TraceEntry& entry) {
  static thread_local bool calls_back = false;
  const std::size_t bytes = tracker_allocates.load();
  const bool is_whole = entry.action_ == allocator::TraceEntry::ALLOC || tracker_always_allocates;
  if (bytes == 0 || !is_whole || calls_back) {
    return;
  }
  calls_back = true;
  const auto stream = static_cast<cudaStream_t>(entry.stream_);
  current().raw_delete(current().raw_alloc_with_stream(bytes, stream));
  calls_back = false;
}

// The error of a call with a pool.
const char* on_pool(int device, std::uint64_t number,
                    const std::function<void(c10::DeviceIndex, c10::MempoolId_t)>& call) {
  return error_of([&] { call(static_cast<c10::DeviceIndex>(device), {0, number}); });
}

}  // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK(interface_probe, GiveUpHoard)
}

extern "C" {

void probe_hoard_mode(int mode) {
  const std::lock_guard lock(hoard().mutex);
  hoard().mode = mode;
}

const char* probe_hoard_add(std::size_t bytes) {
  return error_of([=] {
    void* block = current().raw_alloc(bytes);
    const std::lock_guard lock(hoard().mutex);
    hoard().blocks.push_back(block);
  });
}

// How often the callback ran.
int probe_hoard_calls() {
  const std::lock_guard lock(hoard().mutex);
  return hoard().calls;
}

std::size_t probe_cache_info(int device, std::size_t largest) {
  current().cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}

// Returns the sum; `count` receives the number of segments.
std::size_t probe_expandable_bytes(int device, int* count) {
  std::size_t bytes = 0;
  *count = 0;
  for (const auto& segment :
       current().getExpandableSegmentSizes(static_cast<c10::DeviceIndex>(device))) {
    bytes += segment.total_size;
    ++*count;
  }
  return bytes;
}

void probe_memory_info(int device, std::size_t* free, std::size_t* total) {
  std::tie(*free, *total) = current().getMemoryInfo(static_cast<c10::DeviceIndex>(device));
}

const char* probe_base(void* ptr, std::uintptr_t* base, std::size_t* bytes) {
  return error_of(
      [=] { *base = reinterpret_cast<std::uintptr_t>(current().getBaseAllocation(ptr, bytes)); });
}

// A block that is allocated, copied with the allocator's own call, and freed with its deleter.
const char* probe_round_trip(std::size_t bytes, int byte, int* intact) {
  return error_of([=] {
    const c10::DataPtr data = current().allocate(bytes);
    TORCH_CHECK(current().is_simple_data_ptr(data), "not simple");
    C10_CUDA_CHECK(cudaMemset(data.get(), byte, bytes));
    const c10::DataPtr copy = current().clone(data.get(), bytes);
    TORCH_CHECK(copy.get_deleter() == current().raw_deleter(), "another deleter");
    std::vector<unsigned char> host(bytes);
    C10_CUDA_CHECK(cudaMemcpy(host.data(), copy.get(), bytes, cudaMemcpyDeviceToHost));
    *intact = 1;
    for (const unsigned char found : host) {
      *intact &= static_cast<int>(found == static_cast<unsigned char>(byte));
    }
    void* raw = current().raw_allocate(bytes);
    current().raw_deallocate(raw);
    const auto stream = c10::cuda::getStreamFromPool();
    current().recordStream(copy, stream);
    current().recordStream(copy, c10::Stream(stream));
    current().raw_delete(current().raw_alloc_with_stream(bytes, stream.stream()));
  });
}

const char* probe_pool_hold(int device, std::uint64_t pool) {
  return on_pool(device, pool,
                 [](auto index, auto id) { current().createOrIncrefPool(index, id); });
}

const char* probe_pool_release(int device, std::uint64_t pool) {
  return on_pool(device, pool, [](auto index, auto id) { current().releasePool(index, id); });
}

const char* probe_pool_use_count(int device, std::uint64_t pool, int* count) {
  return on_pool(device, pool,
                 [=](auto index, auto id) { *count = current().getPoolUseCount(index, id); });
}

// From now on this stream's allocations go to the pool.
const char* probe_pool_begin(int device, std::uint64_t pool, std::uintptr_t stream) {
  return on_pool(device, pool, [=](auto index, auto id) {
    current().beginAllocateToPool(index, id, [=](cudaStream_t asked) {
      return reinterpret_cast<std::uintptr_t>(asked) == stream;
    });
  });
}

const char* probe_pool_end(int device, std::uint64_t pool) {
  return on_pool(device, pool, [](auto index, auto id) { current().endAllocateToPool(index, id); });
}

const char* probe_pool_no_split(int device, std::uint64_t pool) {
  return on_pool(device, pool, [](auto index, auto id) { current().setNoSplit(index, id); });
}

const char* probe_pool_lends(int device, std::uint64_t pool) {
  return on_pool(device, pool, [](auto index, auto id) { current().setUseOnOOM(index, id, true); });
}

const char* probe_restore_foreign_state(int device) {
  return error_of([=] {
    current().setCheckpointPoolState(static_cast<c10::DeviceIndex>(device),
                                     std::make_shared<allocator::AllocatorState>());
  });
}

void probe_push_compile_context(const char* name) {
  std::string text = name;
  current().pushCompileContext(text);
}

void probe_pop_compile_context() { current().popCompileContext(); }

void probe_track() {
  current().attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
    if (tracker_fails.load()) {
      throw std::runtime_error("a tracker that fails");
    }
    Told& of_action = told.at(static_cast<std::size_t>(entry.action_));
    ++of_action.count;
    of_action.bytes += static_cast<std::int64_t>(entry.size_);
    call_back(entry);
  });
}

void probe_tracker_fails(int fails) { tracker_fails = fails != 0; }

// Makes trackers allocate at entries of allocations, or with `always` at all entries.
void probe_tracker_allocates(std::size_t bytes, int always) {
  tracker_always_allocates = always != 0;
  tracker_allocates = bytes;
}

// `counts` and `bytes` have 16 places: alloc, free_requested, free_completed, segment_alloc, ...
void probe_told(std::int64_t* counts, std::int64_t* bytes) {
  for (std::size_t i = 0; i < kActions; ++i) {
    counts[i] = told.at(i).count;
    bytes[i] = told.at(i).bytes;
  }
}

void probe_watch_failures() {
  current().attachOutOfMemoryObserver([](std::int64_t, std::size_t, std::size_t, std::size_t) {
    throw std::runtime_error("an observer that fails");
  });
}

}  // extern "C"
