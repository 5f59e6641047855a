// One simulated GPU for one test: it exists as long as the object, and is current in the thread of
// the constructor.
#pragma once

#include "ferro/base/check.h"
#include "ferro/core/policy/handle_sizes.h"
#include "ferro/driver/types.h"
#include "sim/control.h"
#include "sim/driver_api.h"

#include <cstdint>
#include <string>

namespace ferro::testing {

inline constexpr std::size_t kPageBytes = std::size_t{2} << 20;

// The default rules make every handle one page on these small devices; these rules make larger
// ones.
inline constexpr HandleRules kCoarseHandles{16 * kMiB, 2 * kMiB, 2, 1, 1};
// Every other random program has these.
inline HandleRules handle_rules(unsigned seed) {
  return seed % 2 == 0 ? kCoarseHandles : HandleRules{};
}

inline CUstream raw(StreamId stream) { return reinterpret_cast<CUstream>(stream); }

// Work that is submitted stays queued until something waits for it, so a test decides what is
// complete. With `mode=eager` in the settings everything is complete at once.
class SimGpu {
 public:
  static constexpr const char* kManual = "mode=adversarial,turn=1e-300";
  static constexpr const char* kEager = "mode=eager";

  explicit SimGpu(std::size_t pages, const std::string& settings = kManual) {
    const std::string all = settings + ",memory=" + std::to_string(pages * kPageBytes);
    FERRO_CHECK(ferro_sim_start(all.c_str()) == 0, ferro_sim_last_error());
    make_current();
  }
  ~SimGpu() { ferro_sim_stop(); }
  SimGpu(const SimGpu&) = delete;
  SimGpu& operator=(const SimGpu&) = delete;

  static const CudaApi& api() { return sim::sim_cuda_api(); }
  static void expect(CUresult result) {
    FERRO_CHECK(result == CUDA_SUCCESS, std::to_string(static_cast<int>(result)));
  }
  // Every thread that submits work must call this.
  static void make_current() {
    CUcontext context = nullptr;
    expect(api().init(0));
    expect(api().primary_ctx_retain(&context, 0));
    expect(api().ctx_set_current(context));
  }

  static StreamId make_stream() {
    CUstream stream = nullptr;
    expect(api().stream_create(&stream, CU_STREAM_NON_BLOCKING));
    return static_cast<StreamId>(reinterpret_cast<std::uint64_t>(stream));
  }
  static void destroy_stream(StreamId stream) { expect(api().stream_destroy(raw(stream))); }
  // Completes everything submitted to the stream so far.
  static void finish(StreamId stream) { expect(api().stream_synchronize(raw(stream))); }
  static void finish_all() { ferro_sim_drain(); }

  // Memory outside of all allocators.
  static DevicePtr allocate(std::size_t bytes) {
    make_current();
    CUdeviceptr base = 0;
    expect(api().mem_alloc(&base, bytes));
    return DevicePtr{base};
  }
  static void free(DevicePtr base) {
    make_current();
    expect(api().mem_free(address_of(base)));
  }

  static void fill(StreamId stream, DevicePtr ptr, std::uint8_t value, std::size_t bytes) {
    expect(api().memset_d8_async(address_of(ptr), value, bytes, raw(stream)));
  }
  static std::uint8_t peek(DevicePtr ptr) {
    std::uint8_t value = 0;
    FERRO_CHECK(ferro_sim_peek(address_of(ptr), &value, 1) == 0, ferro_sim_last_error());
    return value;
  }

  static void begin_capture(StreamId stream,
                            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    expect(api().stream_begin_capture(raw(stream), mode));
  }
  // Makes `joining` part of the capture that `origin` is in.
  static void fork(StreamId origin, StreamId joining) {
    CUevent event = nullptr;
    expect(api().event_create(&event, CU_EVENT_DISABLE_TIMING));
    expect(api().event_record(event, raw(origin)));
    expect(api().stream_wait_event(raw(joining), event, 0));
    expect(api().event_destroy(event));
  }
  static void end_capture(StreamId stream) {
    CUgraph graph = nullptr;
    expect(api().stream_end_capture(raw(stream), &graph));
    expect(api().graph_destroy(graph));
  }
  // Ends a capture in any state and drops its graph. No-op without a capture.
  static void abandon_capture(StreamId stream) {
    CUgraph graph = nullptr;
    if (api().stream_end_capture(raw(stream), &graph) == CUDA_SUCCESS) {
      expect(api().graph_destroy(graph));
    }
  }

  // Used pages of the device.
  static std::uint64_t used_pages() { return ferro_sim_allocated_bytes(0) / kPageBytes; }
  // Bytes of reserved addresses, including those of cuMemAlloc's memory.
  static std::uint64_t reserved_bytes() { return ferro_sim_reserved_address_bytes(); }
  static std::uint64_t calls(const char* symbol) { return ferro_sim_calls(symbol); }
};

}  // namespace ferro::testing
