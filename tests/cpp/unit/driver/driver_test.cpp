// The Driver class: one change of context and capture mode for many calls, and waits that do not
// invalidate captures.
#include "ferro/driver/driver.h"

#include "ferro/driver/error.h"
#include "sim/control.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace ferro {
namespace driver_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class DriverTest : public ::testing::Test {
 protected:
  DriverTest() { FaultyApi::reset(); }
  ~DriverTest() override { FaultyApi::reset(); }

  // The number of calls that change the context or the capture mode.
  static std::uint64_t switches() {
    return SimGpu::calls("cuThreadExchangeStreamCaptureMode") + SimGpu::calls("cuCtxSetCurrent");
  }
  static void forget_context() { SimGpu::expect(SimGpu::api().ctx_set_current(nullptr)); }
  static CUcontext current_context() {
    CUcontext context = nullptr;
    SimGpu::expect(SimGpu::api().ctx_get_current(&context));
    return context;
  }
  static CUstreamCaptureMode capture_mode() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SimGpu::expect(SimGpu::api().thread_exchange_capture_mode(&mode));
    CUstreamCaptureMode relaxed = mode;
    SimGpu::expect(SimGpu::api().thread_exchange_capture_mode(&relaxed));
    return mode;
  }
  bool captures_still(StreamId stream) {
    return driver_.capture_info(stream).status == CaptureStatus::kActive;
  }
  static StreamId make_blocking_stream() {
    CUstream stream = nullptr;
    SimGpu::expect(SimGpu::api().stream_create(&stream, CU_STREAM_DEFAULT));
    return StreamId{reinterpret_cast<std::uint64_t>(stream)};
  }

  SimGpu gpu_{16, std::string(SimGpu::kManual) + ",devices=2"};
  Driver driver_{FaultyApi::table(), 0};
  Driver second_{FaultyApi::table(), 1};
  const StreamId stream_ = SimGpu::make_stream();
};

TEST_F(DriverTest, ASessionChangesTheSurroundingsOnce) {
  driver_.granularity();  // has a context from here on
  forget_context();
  const std::uint64_t before = switches();
  driver_.memory_info();
  driver_.memory_info();
  EXPECT_EQ(switches() - before, 8U) << "mode and context, there and back, twice";
  const std::uint64_t outside = switches();
  {
    const Driver::Session session(driver_);
    for (int i = 0; i < 10; ++i) {
      driver_.memory_info();
    }
  }
  EXPECT_EQ(switches() - outside, 4U);
  EXPECT_EQ(current_context(), nullptr);
  EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(DriverTest, AnotherDevicesCallInASessionHasItsOwnContext) {
  driver_.granularity();
  second_.granularity();
  const Driver::Session session(driver_);
  const CUcontext first = current_context();
  second_.memory_info();
  EXPECT_EQ(current_context(), first);
  {
    const Driver::Session inner(second_);
    EXPECT_NE(current_context(), first);
    driver_.memory_info();
    EXPECT_NE(current_context(), first);
  }
  EXPECT_EQ(current_context(), first);
}

TEST_F(DriverTest, ABreakGivesTheThreadItsOwnSurroundingsBack) {
  driver_.granularity();
  second_.granularity();
  forget_context();
  const Driver::Session session(driver_);
  const Driver::Session inner(second_);
  const CUcontext second = current_context();
  EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_RELAXED);
  {
    const Driver::SessionBreak pause;
    EXPECT_EQ(current_context(), nullptr);
    EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    driver_.memory_info();
    EXPECT_EQ(current_context(), nullptr);
    EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
  EXPECT_EQ(current_context(), second);
  EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_RELAXED);
  const std::uint64_t before = switches();
  second_.memory_info();
  EXPECT_EQ(switches(), before) << "the session goes on";
}

TEST_F(DriverTest, AnEventThatAStreamOfTheDeviceRefusesIsNoCapture) {
  const EventId event = driver_.create_event();
  FaultyApi::fail_only("cuEventRecord", 1, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_THROW(static_cast<void>(driver_.record(event, stream_)), DriverError);
}

TEST_F(DriverTest, ARecordInACaptureThatEndsMeanwhileIsNone) {
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  bool was_recorded = false;
  FaultyApi::set_watcher([&](const char* symbol) {
    if (was_recorded && symbol == std::string("cuStreamIsCapturing")) {
      was_recorded = false;
      SimGpu::end_capture(stream_);  // another thread may do this
    }
    was_recorded |= symbol == std::string("cuEventRecord");
  });
  EXPECT_FALSE(driver_.record(driver_.create_event(), stream_));
  FaultyApi::set_watcher(nullptr);
  SimGpu::end_capture(stream_);
}

TEST_F(DriverTest, ARefusedWaitThrows) {
  const EventId event = driver_.create_event();
  ASSERT_TRUE(driver_.record(event, stream_));
  FaultyApi::fail_only("cuEventSynchronize", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(driver_.wait(event), DriverError);
}

TEST_F(DriverTest, SomeErrorsEndTheContext) {
  const auto ends = [](int code) { return DriverError("call", "name", code, 0, 0).ends_context(); };
  for (const int code : std::initializer_list<int>{
           CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ASSERT, CUDA_ERROR_ECC_UNCORRECTABLE,
           CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_HARDWARE_STACK_ERROR,
           CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
           CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED,
           CUDA_ERROR_CONTAINED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_EXTERNAL_DEVICE}) {
    EXPECT_TRUE(ends(code)) << code;
  }
  for (const int code :
       std::initializer_list<int>{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                                  CUDA_ERROR_NOT_READY, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                                  CUDA_ERROR_HARDWARE_STACK_ERROR - 1, CUDA_ERROR_LAUNCH_FAILED + 1,
                                  CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_UNKNOWN}) {
    EXPECT_FALSE(ends(code)) << code;
  }
}

TEST_F(DriverTest, AJoinInACaptureIsOneRecordAndOneWait) {
  const StreamId other = SimGpu::make_stream();
  const EventId event = driver_.create_event();
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, other);
  const DriverCalls before = driver_.calls();
  driver_.join_in_capture(event, other, stream_);
  EXPECT_EQ(driver_.calls().event_record - before.event_record, 1U);
  EXPECT_EQ(driver_.calls().stream_wait - before.stream_wait, 1U);
  SimGpu::end_capture(stream_);
}

TEST_F(DriverTest, AContextPointStandsBehindEveryStream) {
  const DevicePtr memory = SimGpu::allocate(kPageBytes);
  const EventId point = driver_.create_event();
  const std::uint64_t before = driver_.calls().event_record;
  ASSERT_TRUE(driver_.has_context_points());
  SimGpu::fill(stream_, memory, 7, 1);
  forget_context();
  ASSERT_TRUE(driver_.record_context(point, driver_.own_context()));
  EXPECT_EQ(current_context(), nullptr);
  EXPECT_EQ(driver_.calls().event_record - before, 1U);
  EXPECT_EQ(SimGpu::calls("cuCtxRecordEvent"), 1U);
  EXPECT_FALSE(driver_.is_complete(point));
  driver_.wait(point);
  EXPECT_TRUE(driver_.is_complete(point));
  EXPECT_EQ(SimGpu::peek(memory), 7);
  SimGpu::free(memory);
}

TEST_F(DriverTest, ACaptureRefusesAContextPoint) {
  const EventId point = driver_.create_event();
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(driver_.record_context(point, driver_.own_context()));
  EXPECT_EQ(driver_.capture_info(stream_).status, CaptureStatus::kInvalidated);
  CUgraph graph = nullptr;
  EXPECT_EQ(SimGpu::api().stream_end_capture(
                reinterpret_cast<CUstream>(static_cast<std::uint64_t>(stream_)), &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_TRUE(driver_.record_context(point, driver_.own_context()));
}

TEST_F(DriverTest, OtherRefusalsOfAContextPointThrow) {
  const EventId foreign = second_.create_event();
  EXPECT_THROW(static_cast<void>(driver_.record_context(foreign, driver_.own_context())),
               DriverError);
  CudaApi old = FaultyApi::table();
  old.ctx_record_event = nullptr;
  Driver without(old, 0);
  EXPECT_FALSE(without.has_context_points());
  EXPECT_THROW(
      static_cast<void>(without.record_context(without.create_event(), without.own_context())),
      DriverError);
}

TEST_F(DriverTest, ABreakOutsideOfASessionIsNothing) {
  const CUcontext current = current_context();
  const std::uint64_t before = switches();
  { const Driver::SessionBreak pause; }
  EXPECT_EQ(switches(), before);
  EXPECT_EQ(current_context(), current);
}

TEST_F(DriverTest, ASessionLeavesAnUnusedDeviceUntouched) {
  const std::uint64_t before = switches();
  {
    const Driver::Session session(second_);
    EXPECT_EQ(second_.context_if_created(), nullptr);
    const Driver::SessionBreak pause;
  }
  EXPECT_EQ(switches(), before);
  const Driver::Session session(second_);
  second_.memory_info();
  EXPECT_NE(second_.context_if_created(), nullptr) << "now it is used";
}

TEST_F(DriverTest, ASessionThatCannotBeginLeavesNone) {
  driver_.granularity();
  forget_context();
  FaultyApi::fail_only("cuCtxSetCurrent", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(Driver::Session{driver_}, DriverError);
  EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  driver_.memory_info();
  EXPECT_EQ(current_context(), nullptr);
}

TEST_F(DriverTest, TheLegacyStreamTellsOfACaptureOnABlockingStream) {
  const StreamId blocking = make_blocking_stream();
  SimGpu::begin_capture(blocking);
  EXPECT_TRUE(driver_.captures(StreamId{0}));
  EXPECT_TRUE(captures_still(blocking));
  SimGpu::end_capture(blocking);
  EXPECT_FALSE(driver_.captures(StreamId{0}));
}

TEST_F(DriverTest, ARefusedCallIsNamedWithTheDriversWords) {
  FaultyApi::fail_only("cuMemGetInfo_v2", 1, CUDA_ERROR_NOT_PERMITTED);
  try {
    (void)driver_.memory_info();
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_STREQ(error.what(),
                 "ferro_alloc: cuMemGetInfo failed with CUDA_ERROR_NOT_PERMITTED on device 0");
    EXPECT_EQ(error.code(), CUDA_ERROR_NOT_PERMITTED);
  }
  FaultyApi::reset();
}

TEST_F(DriverTest, TheLegacyStreamCountsAsCapturingWhileABlockingStreamDoes) {
  const StreamId blocking = make_blocking_stream();
  EXPECT_EQ(driver_.capture_info(StreamId{0}).status, CaptureStatus::kNone);
  SimGpu::begin_capture(blocking);
  EXPECT_EQ(driver_.capture_info(StreamId{0}).status, CaptureStatus::kActive);
  SimGpu::end_capture(blocking);
  EXPECT_EQ(driver_.capture_info(StreamId{0}).status, CaptureStatus::kNone);
}

TEST_F(DriverTest, ACaptureOnANonBlockingStreamShowsOnItAlone) {
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(driver_.captures(StreamId{0})) << "a non-blocking stream does not show there";
  EXPECT_TRUE(driver_.captures(stream_));
  EXPECT_FALSE(driver_.captures(SimGpu::make_stream()));
  EXPECT_TRUE(captures_still(stream_));
  SimGpu::end_capture(stream_);
}

TEST_F(DriverTest, AnEventFromBeforeTheCaptureTellsWhetherTheWorkIsDone) {
  const DevicePtr memory = SimGpu::allocate(kPageBytes);
  SimGpu::fill(stream_, memory, 7, 1);
  const EventId event = driver_.create_event();
  ASSERT_TRUE(driver_.record(event, stream_));
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(driver_.is_complete(event));
  EXPECT_TRUE(captures_still(stream_)) << "a query of the stream would have invalidated it";
  SimGpu::end_capture(stream_);
  SimGpu::finish(stream_);
  EXPECT_TRUE(driver_.is_complete(event));
  SimGpu::free(memory);
}

TEST_F(DriverTest, EveryKindOfCallHasAName) {
  std::map<std::string, std::uint64_t> counts;
  EXPECT_TRUE(driver_.record(driver_.create_event(), stream_));
  for_each_kind(driver_.calls(),
                [&](const char* name, std::uint64_t count) { counts[name] = count; });
  EXPECT_EQ(counts.size(), kDriverCallKinds);
  EXPECT_EQ(counts.at("event_record"), 1U);
  EXPECT_EQ(counts.at("exported"), 0U);
  EXPECT_EQ(counts.at("imported"), 0U);
}

TEST_F(DriverTest, HandlesLieOnTheirOwnDevice) {
  int device = 0;
  for (Driver* const driver : {&driver_, &second_}) {
    ASSERT_TRUE(driver->release(driver->create(kPageBytes).value()));  // creates the context
    const std::uint64_t before = ferro_sim_allocated_bytes(device);
    const PageHandle page = driver->create(kPageBytes).value();
    EXPECT_EQ(ferro_sim_allocated_bytes(device), before + kPageBytes) << device;
    EXPECT_TRUE(driver->release(page));
    ++device;
  }
}

TEST_F(DriverTest, CopiesInEitherDirectionAreCounted) {
  const DevicePtr there = SimGpu::allocate(kPageBytes);
  std::byte here[8] = {};
  driver_.copy_to_host(here, there, sizeof here);
  EXPECT_EQ(driver_.calls().copy, 1U);
  driver_.copy_to_device(there, here, sizeof here);
  EXPECT_EQ(driver_.calls().copy, 2U);
  driver_.wait_for_copies();
  SimGpu::free(there);
}

TEST(DriverPeersTest, EachOfSeveralPeersGetsAccessToWhatIsMappedLater) {
  SimGpu gpu(16, std::string(SimGpu::kManual) + ",devices=3");
  Driver driver(FaultyApi::table(), 0);
  EXPECT_TRUE(driver.add_peer(1));
  EXPECT_TRUE(driver.add_peer(2));
  EXPECT_FALSE(driver.add_peer(1));
  const DevicePtr base = driver.reserve(kPageBytes, 0).value();
  const PageHandle page = driver.create(kPageBytes).value();
  ASSERT_EQ(driver.map(base, kPageBytes, page), Status::kOk);
  ASSERT_EQ(driver.set_access(base, kPageBytes), Status::kOk);
  for (const int device : {0, 1, 2}) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    unsigned long long flags = 0;
    SimGpu::expect(SimGpu::api().mem_get_access(&flags, &location, address_of(base)));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) << device;
  }
  EXPECT_TRUE(driver.unmap(base, kPageBytes));
  EXPECT_TRUE(driver.release(page));
  EXPECT_TRUE(driver.unreserve(base, kPageBytes));
}

}  // namespace driver_test
}  // namespace ferro
