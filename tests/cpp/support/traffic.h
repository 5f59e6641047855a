// Work on a simulated GPU that detects wrong reuse of memory: every live block carries a tag,
// written by its stream, and read back by each stream that uses it. The work stays queued until the
// simulated GPU runs it, so memory that was reused too early shows as a wrong tag.
#pragma once

#include "support/sim_gpu.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ferro::testing {

// An error found by the model or by a tag.
class ModelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// A point in the work of a stream.
class Event {
 public:
  // Recorded behind the current work of the stream. It belongs to device 0, or to the given
  // context.
  explicit Event(StreamId stream, CUcontext context = nullptr) {
    if (context != nullptr) {
      SimGpu::expect(SimGpu::api().ctx_set_current(context));
    }
    SimGpu::expect(SimGpu::api().event_create(&event_, CU_EVENT_DISABLE_TIMING));
    if (context != nullptr) {
      SimGpu::make_current();
    }
    SimGpu::expect(SimGpu::api().event_record(event_, raw(stream)));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) {
      SimGpu::api().event_destroy(event_);
    }
  }

  bool complete() const { return SimGpu::api().event_query(event_) == CUDA_SUCCESS; }
  void wait() const { SimGpu::expect(SimGpu::api().event_synchronize(event_)); }
  void hold_back(StreamId later) const {
    SimGpu::expect(SimGpu::api().stream_wait_event(raw(later), event_, 0));
  }

 private:
  CUevent event_ = nullptr;
};

class Traffic {
 public:
  static constexpr unsigned kStreams = 3;
  static constexpr unsigned kSpareStreams = 6;
  // The stream with this number is destroyed and replaced.
  static constexpr unsigned kShortStream = kStreams - 1;
  // A stream of device 1, which only reads, with copies that need no access as a peer.
  static constexpr unsigned kSecondDevice = ~0U - 1;

  Traffic() {
    // All at once, so that none gets the handle of another; and in order, because the allocator goes
    // through streams by their handles, and equal programs shall run equally.
    std::array<StreamId, kStreams + kSpareStreams> made{};
    std::ranges::generate(made, [] { return SimGpu::make_stream(); });
    std::ranges::sort(made);
    std::ranges::copy_n(made.begin(), kStreams, streams_.begin());
    std::ranges::copy_n(made.begin() + kStreams, kSpareStreams, spare_streams_.begin());
    void* memory = nullptr;
    SimGpu::expect(SimGpu::api().mem_host_alloc(&memory, kSlots, 0));
    read_ = static_cast<std::uint8_t*>(memory);
  }

  StreamId stream(unsigned number) const {
    return number == kSecondDevice ? second_stream_ : streams_[number % kStreams];
  }
  bool capturing(unsigned number) const { return capture(number) != 0; }
  // The number of the capture of a stream, unique among all streams; 0 if it does not capture.
  unsigned capture(unsigned number) const {
    return number == kSecondDevice ? 0 : captures_[number % kStreams];
  }

  // The number of capturing streams.
  int captures() const { return static_cast<int>(kStreams - std::ranges::count(captures_, 0U)); }

  void begin_capture(unsigned number) {
    if (!capturing(number)) {
      last_before_capture_[number % kStreams] = std::make_shared<Event>(stream(number));
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

  bool uses_second_device() const { return second_ != nullptr; }
  // Adds a stream of the second device, which the machine must have.
  void use_second_device() {
    if (second_ == nullptr) {
      SimGpu::expect(SimGpu::api().ctx_get_current(&first_));
      SimGpu::expect(SimGpu::api().primary_ctx_retain(&second_, 1));
      SimGpu::expect(SimGpu::api().ctx_set_current(second_));
      second_stream_ = SimGpu::make_stream();
      CUdeviceptr base = 0;
      SimGpu::expect(SimGpu::api().mem_alloc(&base, kPageBytes));
      copy_ = DevicePtr{base};
      SimGpu::make_current();
    }
  }

  // On a stream that does not capture.
  void write(unsigned number, DevicePtr ptr, std::size_t size, std::uint8_t tag) {
    for_each_sample(ptr, size, [&](DevicePtr at) { SimGpu::fill(stream(number), at, tag, 1); });
    mark(number);
  }
  // Writes every byte of the block.
  void overwrite(unsigned number, DevicePtr ptr, std::size_t size, std::uint8_t tag) {
    SimGpu::fill(stream(number), ptr, tag, size);
    mark(number);
  }
  void read(unsigned number, DevicePtr ptr, std::size_t size, std::uint8_t tag) {
    if (expected_.size() + size / kPageBytes + 2 > kSlots) {
      SimGpu::finish_all();
      verify();
    }
    for_each_sample(ptr, size, [&](DevicePtr at) {
      std::uint64_t from = address_of(at);
      if (number == kSecondDevice) {
        from = address_of(copy_);
        SimGpu::expect(SimGpu::api().memcpy_peer_async(from, second_, address_of(at), first_, 1,
                                                       raw(stream(number))));
      }
      SimGpu::expect(
          SimGpu::api().memcpy_dtoh_async(read_ + expected_.size(), from, 1, raw(stream(number))));
      expected_.push_back({tag, at});
    });
    if (number != kSecondDevice) {
      mark(number);
    }
  }
  // Makes `later` wait for the current work of `earlier`.
  void order(unsigned earlier, unsigned later) { record(earlier).hold_back(stream(later)); }
  Event record(unsigned number) const {
    return Event(stream(number), number == kSecondDevice ? second_ : nullptr);
  }
  // An event behind the last work of the stream outside of captures.
  std::shared_ptr<Event> last_place(unsigned number) const {
    return capturing(number) ? last_before_capture_[number % kStreams]
                             : std::make_shared<Event>(record(number));
  }

  bool has_spare_stream() const { return next_spare_ < spare_streams_.size(); }
  // Destroys the short stream, even with unfinished work, and replaces it. Returns the destroyed
  // one.
  StreamId replace_short_stream() {
    const StreamId gone = std::exchange(streams_[kShortStream], spare_streams_[next_spare_++]);
    SimGpu::destroy_stream(gone);
    return gone;
  }
  // No capture was invalidated.
  bool captures_are_sound() const {
    for (unsigned number = 0; number < kStreams; ++number) {
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      SimGpu::expect(SimGpu::api().stream_is_capturing(raw(stream(number)), &status));
      if (status !=
          (capturing(number) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE)) {
        return false;
      }
    }
    return true;
  }

  void advance(unsigned number) {
    std::deque<Event>& marks = marks_[number % kStreams];
    while (!marks.empty()) {
      const Event event = std::move(marks.front());
      marks.pop_front();
      const bool was_complete = event.complete();
      event.wait();
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

  // Compares the tags read so far. All work must be finished.
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
  std::array<StreamId, kSpareStreams> spare_streams_{};
  CUcontext first_ = nullptr;
  CUcontext second_ = nullptr;
  StreamId second_stream_{};
  DevicePtr copy_ = kNull;  // of one byte that the second device reads
  std::size_t next_spare_ = 0;
  std::array<unsigned, kStreams> captures_{};
  unsigned last_capture_ = 0;
  std::array<std::shared_ptr<Event>, kStreams> last_before_capture_;
  std::array<std::deque<Event>, kStreams> marks_;
  std::uint8_t* read_ = nullptr;  // page-locked, freed with the machine
  std::vector<Expected> expected_;
};

}  // namespace ferro::testing
