// Work on a simulated GPU that proves who may touch which memory: every live block carries a tag,
// written by its stream, and read back by each stream that uses it. All of it stays queued until
// the simulated GPU gets to it, so memory that was handed out too early shows as a wrong tag.
#pragma once

#include "support/sim_gpu.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferro::testing {

// What a model or a tag finds wrong.
class ModelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class Traffic {
 public:
  static constexpr unsigned kStreams = 3;

  Traffic() {
    for (StreamId& stream : streams_) {
      stream = SimGpu::make_stream();
    }
    void* memory = nullptr;
    SimGpu::expect(SimGpu::api().mem_host_alloc(&memory, kSlots, 0));
    read_ = static_cast<std::uint8_t*>(memory);
  }

  StreamId stream(unsigned number) const { return streams_[number % kStreams]; }
  bool capturing(unsigned number) const { return captures_[number % kStreams] != 0; }
  // Distinguishes captures of all streams; 0: none.
  unsigned capture(unsigned number) const { return captures_[number % kStreams]; }

  // How many streams capture now.
  int captures() const { return static_cast<int>(kStreams - std::ranges::count(captures_, 0U)); }

  void begin_capture(unsigned number) {
    if (!capturing(number)) {
      SimGpu::begin_capture(stream(number), CU_STREAM_CAPTURE_MODE_RELAXED);
      captures_[number % kStreams] = ++last_capture_;
    }
  }
  void end_capture(unsigned number) {
    if (capturing(number)) {
      SimGpu::end_capture(stream(number));
      captures_[number % kStreams] = 0;
    }
  }

  // On a stream that does not capture.
  void write(unsigned number, DevicePtr ptr, std::size_t size, std::uint8_t tag) {
    for_each_sample(ptr, size, [&](DevicePtr at) { SimGpu::fill(stream(number), at, tag, 1); });
    mark(number);
  }
  void read(unsigned number, DevicePtr ptr, std::size_t size, std::uint8_t tag) {
    if (expected_.size() + size / kPageBytes + 2 > kSlots) {
      SimGpu::finish_all();
      verify();
    }
    for_each_sample(ptr, size, [&](DevicePtr at) {
      SimGpu::expect(SimGpu::api().memcpy_dtoh_async(read_ + expected_.size(), address_of(at), 1,
                                                     raw(stream(number))));
      expected_.push_back({tag, at});
    });
    mark(number);
  }
  // `later` continues after everything that `earlier` has now.
  void order(unsigned earlier, unsigned later) {
    CUevent event = record(earlier);
    SimGpu::expect(SimGpu::api().stream_wait_event(raw(stream(later)), event, 0));
    SimGpu::expect(SimGpu::api().event_destroy(event));
  }
  // An event behind what the stream has now; the caller destroys it.
  CUevent record(unsigned number) {
    CUevent event = nullptr;
    SimGpu::expect(SimGpu::api().event_create(&event, CU_EVENT_DISABLE_TIMING));
    SimGpu::expect(SimGpu::api().event_record(event, raw(stream(number))));
    return event;
  }
  static bool complete(CUevent event) { return SimGpu::api().event_query(event) == CUDA_SUCCESS; }

  void advance(unsigned number) {
    std::deque<CUevent>& marks = marks_[number % kStreams];
    while (!marks.empty()) {
      const CUevent event = marks.front();
      marks.pop_front();
      const bool was_complete = complete(event);
      SimGpu::expect(SimGpu::api().event_synchronize(event));
      SimGpu::expect(SimGpu::api().event_destroy(event));
      if (!was_complete) {
        return;
      }
    }
  }
  void finish(unsigned number) {
    if (!capturing(number)) {
      SimGpu::finish(stream(number));
    }
  }

  // Compares what was read so far. Everything must be finished.
  void verify() {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (read_[i] != expected_[i].tag) {
        throw ModelError("wrong contents at " + std::to_string(address_of(expected_[i].at)) +
                         ": tag " + std::to_string(read_[i]) + " instead of " +
                         std::to_string(expected_[i].tag));
      }
    }
    expected_.clear();
  }

 private:
  static constexpr std::size_t kSlots = 1 << 14;
  struct Expected {
    std::uint8_t tag;
    DevicePtr at;
  };

  // One byte of every page that the block touches, and its last one.
  template <typename Function>
  static void for_each_sample(DevicePtr ptr, std::size_t size, Function function) {
    for (std::size_t offset = 0; offset < size; offset += kPageBytes) {
      function(ptr + offset);
    }
    function(ptr + (size - 1));
  }
  void mark(unsigned number) { marks_[number % kStreams].push_back(record(number)); }

  std::array<StreamId, kStreams> streams_{};
  std::array<unsigned, kStreams> captures_{};
  unsigned last_capture_ = 0;
  std::array<std::deque<CUevent>, kStreams> marks_;
  std::uint8_t* read_ = nullptr;  // page-locked, gone with the machine
  std::vector<Expected> expected_;
};

}  // namespace ferro::testing
