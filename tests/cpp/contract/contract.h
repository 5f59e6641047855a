// The driver contract: what ferro_alloc relies on, as cases that run on any driver table.
//
// The same cases run on the simulated driver (sim_contract_test.cpp, contract_runner --simulated)
// and on a real GPU (contract_runner). A case throws `Failure` when the driver behaves differently,
// and `Skipped` where the case does not apply. Cases clean up after themselves, also when they
// fail.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/driver/cuda_api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ferro::contract {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where a case runs: a table, and a device whose primary context is current.
struct Env {
  const CudaApi& api;
  CUdevice device = 0;
  CUcontext context = nullptr;
  bool simulated = false;
  // Work is complete when its call returns.
  bool eager = false;
  // The program of the other process in cases about sharing; empty where there is none.
  std::string peer_program;
  // The number of host threads that wait inside the driver; null if the driver cannot tell.
  std::uint64_t (*waiting_threads)() = nullptr;

  // For cases that need work to stay unfinished while the host goes on.
  void require_queued_work() const {
    if (eager) {
      throw Skipped("work is complete when its call returns");
    }
  }
};

struct Case {
  const char* name;
  void (*run)(Env& env);
};

inline std::string result_name(const CudaApi& api, CUresult result) {
  const char* name = nullptr;
  api.get_error_name(result, &name);
  return name == nullptr ? std::to_string(static_cast<int>(result)) : name;
}

inline void expect_result(const CudaApi& api, const char* call, CUresult actual, CUresult expected,
                          const char* file, int line) {
  if (actual != expected) {
    throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + call + " gives " +
                  result_name(api, actual) + ", not " + result_name(api, expected));
  }
}

inline void expect_true(bool condition, const char* text, const char* file, int line) {
  if (!condition) {
    throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text + " is false");
  }
}

// Each needs a variable `env` in scope.
#define CONTRACT_RESULT(call, expected) \
  ::ferro::contract::expect_result(env.api, #call, (call), (expected), __FILE__, __LINE__)
#define CONTRACT_OK(call) CONTRACT_RESULT(call, CUDA_SUCCESS)
#define CONTRACT_REFUSED(call) CONTRACT_CHECK((call) != CUDA_SUCCESS)
#define CONTRACT_CHECK(condition) \
  ::ferro::contract::expect_true((condition), #condition, __FILE__, __LINE__)

inline constexpr std::size_t kPage = 2 * kMiB;

inline CUmemAllocationProp page_properties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}
inline CUmemAllocationProp page_properties(const Env& env) { return page_properties(env.device); }

inline CUmemGenericAllocationHandle create_page(const Env& env, std::size_t bytes = kPage) {
  const CUmemAllocationProp properties = page_properties(env);
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_OK(env.api.mem_create(&handle, bytes, &properties, 0));
  return handle;
}

inline CUmemAccessDesc access_for(CUdevice device) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

inline CUresult set_access(const Env& env, CUdeviceptr at, std::size_t bytes) {
  const CUmemAccessDesc access = access_for(env.device);
  return env.api.mem_set_access(at, bytes, &access, 1);
}

inline void map_page(const Env& env, CUdeviceptr at, CUmemGenericAllocationHandle handle,
                     std::size_t bytes = kPage) {
  CONTRACT_OK(env.api.mem_map(at, bytes, 0, handle, 0));
  CONTRACT_OK(set_access(env, at, bytes));
}

inline std::size_t free_bytes(const Env& env) {
  std::size_t free = 0;
  std::size_t total = 0;
  CONTRACT_OK(env.api.mem_get_info(&free, &total));
  return free;
}

// Reserved addresses without memory.
class Reservation {
 public:
  Reservation(const Env& env, std::size_t bytes) : env_(env), bytes_(bytes) {
    CONTRACT_OK(env.api.mem_address_reserve(&base_, bytes, 0, 0, 0));
  }
  ~Reservation() { env_.api.mem_address_free(base_, bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  CUdeviceptr base() const { return base_; }

 private:
  const Env& env_;
  CUdeviceptr base_ = 0;
  const std::size_t bytes_;
};

// Pages of 2 MiB mapped side by side, readable and writable.
class Memory {
 public:
  explicit Memory(const Env& env, std::size_t pages = 1)
      : env_(env), pages_(pages), range_(env, pages * kPage) {
    for (std::size_t i = 0; i < pages; ++i) {
      const CUmemGenericAllocationHandle handle = create_page(env);
      const CUresult mapped = env.api.mem_map(at(i), kPage, 0, handle, 0);
      env.api.mem_release(handle);
      CONTRACT_OK(mapped);
    }
    CONTRACT_OK(set_access(env, range_.base(), pages * kPage));
  }
  ~Memory() {
    env_.api.ctx_synchronize();
    for (std::size_t i = 0; i < pages_; ++i) {
      env_.api.mem_unmap(at(i), kPage);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  CUdeviceptr base() const { return range_.base(); }
  CUdeviceptr at(std::size_t page) const { return range_.base() + page * kPage; }

 private:
  const Env& env_;
  const std::size_t pages_;
  Reservation range_;
};

class Stream {
 public:
  explicit Stream(const Env& env, unsigned flags = CU_STREAM_NON_BLOCKING) : env_(env) {
    CONTRACT_OK(env.api.stream_create(&handle_, flags));
  }
  ~Stream() {
    if (handle_ != nullptr) {
      env_.api.stream_destroy(handle_);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return handle_; }
  CUstream release() { return std::exchange(handle_, nullptr); }

 private:
  const Env& env_;
  CUstream handle_ = nullptr;
};

class Event {
 public:
  explicit Event(const Env& env, unsigned flags = CU_EVENT_DISABLE_TIMING) : env_(env) {
    CONTRACT_OK(env.api.event_create(&handle_, flags));
  }
  ~Event() { env_.api.event_destroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return handle_; }

 private:
  const Env& env_;
  CUevent handle_ = nullptr;
};

// Page-locked host words.
class HostWords {
 public:
  HostWords(const Env& env, std::size_t count) : env_(env) {
    void* memory = nullptr;
    CONTRACT_OK(env.api.mem_host_alloc(&memory, count * sizeof(unsigned), 0));
    words_ = static_cast<unsigned*>(memory);
  }
  ~HostWords() { env_.api.mem_free_host(words_); }
  HostWords(const HostWords&) = delete;
  HostWords& operator=(const HostWords&) = delete;
  unsigned* data() { return words_; }
  unsigned& operator[](std::size_t i) { return words_[i]; }

 private:
  const Env& env_;
  unsigned* words_ = nullptr;
};

// Holds a stream until the gate is opened. The destructor opens it, so that a failed case ends.
class Gate {
 public:
  Gate(const Env& env, CUstream stream) : env_(env) {
    env.require_queued_work();
    CONTRACT_OK(env.api.launch_host_func(stream, &Gate::wait, this));
  }
  ~Gate() {
    open();
    while (!passed_.load()) {
      // A simulated driver runs queued work only when it is called.
      env_.api.ctx_synchronize();
    }
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { open_.store(true); }
  bool is_open() const { return open_.load(); }
  bool has_passed() const { return passed_.load(); }

 private:
  static void wait(void* self) {
    auto* gate = static_cast<Gate*>(self);
    while (!gate->open_.load()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    gate->passed_.store(true);
  }

  const Env& env_;
  std::atomic<bool> open_{false};
  std::atomic<bool> passed_{false};
};

// Expects that the event is behind the work that the gate holds, and complete once the gate is
// open.
inline void expect_behind(const Env& env, CUevent event, Gate& gate) {
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.event_synchronize(event));
}

inline void fill_words(const Env& env, CUdeviceptr at, unsigned value, std::size_t count,
                       CUstream stream) {
  CONTRACT_OK(env.api.memset_d32_async(at, value, count, stream));
}

inline unsigned read_word(const Env& env, CUdeviceptr at) {
  unsigned word = 0;
  Stream stream(env);
  CONTRACT_OK(env.api.memcpy_dtoh_async(&word, at, sizeof(word), stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  return word;
}

// A recorded and instantiated graph.
class Executable {
 public:
  Executable(const Env& env, CUgraph graph) : env_(env), graph_(graph) {
    const CUresult result = env.api.graph_instantiate(&exec_, graph, 0);
    if (result != CUDA_SUCCESS) {
      env.api.graph_destroy(graph);
    }
    CONTRACT_OK(result);
  }
  ~Executable() {
    env_.api.graph_exec_destroy(exec_);
    env_.api.graph_destroy(graph_);
  }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  operator CUgraphExec() const { return exec_; }

 private:
  const Env& env_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

// A capture that ends at the latest with the scope.
class CaptureScope {
 public:
  CaptureScope(const Env& env, CUstream stream,
               CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL)
      : env_(env), stream_(stream) {
    CONTRACT_OK(env.api.stream_begin_capture(stream, mode));
  }
  ~CaptureScope() {
    if (!ended_) {
      CUgraph graph = nullptr;
      end(&graph);
      if (graph != nullptr) {
        env_.api.graph_destroy(graph);
      }
    }
  }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  CUresult end(CUgraph* graph) {
    ended_ = true;
    return env_.api.stream_end_capture(stream_, graph);
  }
  CUgraph finish() {
    const Env& env = env_;
    CUgraph graph = nullptr;
    CONTRACT_OK(end(&graph));
    CONTRACT_CHECK(graph != nullptr);
    return graph;
  }

 private:
  const Env& env_;
  const CUstream stream_;
  bool ended_ = false;
};

}  // namespace ferro::contract
