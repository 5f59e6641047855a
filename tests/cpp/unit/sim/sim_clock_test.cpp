// The simulated GPU in clock time: the durations of work, when it runs, and when the host sees its
// end.
#include "contract/all_cases.h"
#include "sim/control.h"
#include "sim/driver_api.h"
#include "sim/machine/machine.h"
#include "sim/streams/durations.h"

#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <thread>

namespace ferro::sim {
namespace sim_clock_test {

using contract::Env;
using contract::Event;
using contract::Executable;
using contract::HostWords;
using contract::Memory;
using contract::Stream;

constexpr Nanoseconds kMicrosecond = 1000;
constexpr Nanoseconds kMillisecond = 1000 * kMicrosecond;

const Card& h100() { return *find_card("h100"); }

TEST(SimDurations, FollowTheFiguresOfTheCard) {
  // 1 GiB at 85 % of 3,350 GB/s, written once, or read and written.
  Fill fill;
  fill.width = kGiB;
  EXPECT_NEAR(static_cast<double>(duration_of(h100(), fill)), 379e3, 1e3);
  Copy copy;
  copy.width = kGiB;
  copy.to_device = copy.from_device = true;
  EXPECT_NEAR(static_cast<double>(duration_of(h100(), copy)), 756e3, 1e3);
  // Over a link of 55 GB/s, and through the driver's buffer.
  copy.from_device = false;
  EXPECT_NEAR(static_cast<double>(duration_of(h100(), copy)), 19.5e6, 0.1e6);
  copy.pageable = true;
  EXPECT_NEAR(static_cast<double>(duration_of(h100(), copy)), 107.4e6, 0.1e6);
  // 80 % of 989 TFLOP/s; a product with one column is bound by memory.
  EXPECT_NEAR(static_cast<double>(product_duration(h100(), {8192, 8192, 8192})), 1.392e6, 1e3);
  EXPECT_NEAR(static_cast<double>(product_duration(h100(), {8192, 1, 8192})), 49.0e3, 1e3);
  // Products of floats: 54 % of 67 TFLOP/s, and at least 7 us.
  const Product singles{8192, 8192, 8192, 1, Precision::kSingle};
  EXPECT_NEAR(static_cast<double>(product_duration(h100(), singles)), 30.4e6, 0.1e6);
  EXPECT_NEAR(static_cast<double>(product_duration(h100(), {8, 8, 8, 1, Precision::kSingle})), 7000,
              10);
  EXPECT_LT(kernel_duration(*find_card("h200"), 1 << 30), kernel_duration(h100(), 1 << 30));
  // A thread of most kernels moves 40 bytes; one of an optimizer's over many tensors 815.
  EXPECT_NEAR(static_cast<double>(kernel_duration(h100(), 1 << 26)), 944.6e3, 1e3);
  EXPECT_EQ(thread_bytes("_ZN2at6native6vectorIEE"), kThreadBytes);
  EXPECT_EQ(thread_bytes("_ZN2at6native25multi_tensor_apply_kernelIEE"), 815);
  EXPECT_EQ(thread_bytes("_ZN2at19CatArrayBatchedCopyIEE"), 750);
  EXPECT_EQ(thread_bytes("_ZN2at30CatArrayBatchedCopy_vectorizedIEE"), kThreadBytes);
  EXPECT_EQ(thread_bytes("_ZN2at6native13im2col_kernelIEE"), 110);
  EXPECT_EQ(thread_bytes("_ZN2at6native13col2im_kernelIEE"), 240);
  EXPECT_NEAR(static_cast<double>(kernel_duration(h100(), 1 << 26, 400)), 9.43e6, 1e4);
  EXPECT_EQ(duration_of(h100(), Marker{}), 0);
  for (const char* key : {"h100", "h200"}) {
    const Nanoseconds smallest = kernel_duration(*find_card(key), 32);
    EXPECT_GE(smallest, 1900) << key;
    EXPECT_LT(smallest, 2000) << key;
  }
}

class SimClock : public ::testing::Test {
 protected:
  ~SimClock() override { Machine::stop(); }

  static Env start(double program_microseconds = 0, double program_factor = 0,
                   double (*processor_time)() = thread_processor_time) {
    MachineConfig config;
    config.memory_bytes = 64 * kMiB;
    config.mode = TimeMode::kClock;
    config.program_microseconds = program_microseconds;
    config.program_factor = program_factor;
    config.processor_time = processor_time;
    Machine::start(config);
    return contract::open_env(sim_cuda_api(), true, false);
  }

  static Nanoseconds host_time() {
    const std::lock_guard guard(Machine::lock());
    return Machine::current().scheduler().host_time();
  }
  static Nanoseconds busy_time() {
    const std::lock_guard guard(Machine::lock());
    return Machine::current().scheduler().busy_time(0);
  }

  // A kernel of about that duration; returns the exact one.
  static Nanoseconds launch(const Env& env, CUstream stream, Nanoseconds duration) {
    constexpr std::uint64_t kMany = 1 << 30;
    const double threads =
        static_cast<double>(duration) * kMany / static_cast<double>(kernel_duration(h100(), kMany));
    const auto blocks = static_cast<unsigned>(threads / 256) + 1;
    CONTRACT_OK(cuLaunchKernel(nullptr, blocks, 1, 1, 256, 1, 1, 0, stream, nullptr, nullptr));
    return kernel_duration(h100(), std::uint64_t{blocks} * 256);
  }
  static Nanoseconds elapsed(const Env& env, CUevent begin, CUevent end) {
    float milliseconds = 0;
    CONTRACT_OK(cuEventElapsedTime(&milliseconds, begin, end));
    return std::llround(static_cast<double>(milliseconds) * kMillisecond);
  }
};

TEST_F(SimClock, AnEventIsLateExactlyWhileTheHostIsAhead) {
  const Env env = start();
  const Stream stream(env);
  const Event event(env);
  const Nanoseconds launched = host_time();
  const Nanoseconds end = launched + launch(env, stream, kMillisecond);
  CONTRACT_OK(env.api.event_record(event, stream));
  int late = 0;
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY) {
    const Nanoseconds asked = host_time();
    result = env.api.event_query(event);
    EXPECT_EQ(result == CUDA_ERROR_NOT_READY, asked < end);
    late += asked < end ? 1 : 0;
  }
  EXPECT_EQ(result, CUDA_SUCCESS);
  // A query takes a quarter of a microsecond.
  EXPECT_NEAR(late, 4150, 100);
  EXPECT_EQ(env.api.stream_query(stream), CUDA_SUCCESS);
}

TEST_F(SimClock, NoEventIsLateUnderASlowProgram) {
  const Env env = start(50);
  const Stream stream(env);
  const Event event(env);
  for (int i = 0; i < 20; ++i) {
    launch(env, stream, 10 * kMicrosecond);
    CONTRACT_OK(env.api.event_record(event, stream));
    const Nanoseconds before = host_time();
    launch(env, nullptr, 10 * kMicrosecond);
    EXPECT_EQ(host_time() - before, 53 * kMicrosecond);
    EXPECT_EQ(env.api.event_query(event), CUDA_SUCCESS);
  }
}

// The processor time that the test reports for a thread, in microseconds.
thread_local double taken = 0;

TEST_F(SimClock, AProgramMayTakeTheTimeThatItsThreadsTakeHere) {
  const Env env = start(0, 2, [] { return taken; });
  // The advance of the host's clock by a call after so much work.
  const auto call_after = [&env](double microseconds) {
    const Nanoseconds before = host_time();
    taken += microseconds;
    CONTRACT_OK(env.api.ctx_set_current(env.context));
    return host_time() - before;
  };
  const Nanoseconds call = call_after(0);
  EXPECT_EQ(call_after(5000), 10 * kMillisecond + call);
  EXPECT_EQ(call_after(0), call);
  std::thread([&] {
    EXPECT_EQ(call_after(5000), call) << "before a thread's first call";
    EXPECT_EQ(call_after(5000), 10 * kMillisecond + call);
  }).join();
  EXPECT_EQ(call_after(1), 2 * kMicrosecond + call) << "the other thread's time is its own";
}

TEST_F(SimClock, AThreadTakesTheProcessorTimeOfTheSystem) {
  const auto processor_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  };
  const double before = processor_time();
  const double now = thread_processor_time();
  const double after = processor_time();
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
  EXPECT_EQ(MachineConfig{}.processor_time, &thread_processor_time);
}

TEST_F(SimClock, AProductTakesTheHostTheTimeOfItsLibrary) {
  const auto launch_takes = [](double program_factor, Precision precision) {
    Env env = start(0, program_factor);
    CUmodule module = nullptr;
    CUfunction product = nullptr;
    CONTRACT_OK(cuModuleLoadData(&module, nullptr));
    CONTRACT_OK(cuModuleGetFunction(&product, module, kProductKernel.data()));
    Product sizes{8, 8, 8, 1, precision};
    void* arguments[] = {&sizes};
    const Nanoseconds before = host_time();
    CONTRACT_OK(cuLaunchKernel(product, 1, 1, 1, 32, 1, 1, 0, nullptr,
                               static_cast<void**>(arguments), nullptr));
    return host_time() - before;
  };
  // The factor is so small that this thread's own time does not count.
  constexpr double kNothing = 1e-9;
  EXPECT_EQ(launch_takes(kNothing, Precision::kHalf), 11 * kMicrosecond);
  Machine::stop();
  EXPECT_EQ(launch_takes(kNothing, Precision::kSingle), 14 * kMicrosecond);
  Machine::stop();
  EXPECT_EQ(launch_takes(0, Precision::kSingle), 3 * kMicrosecond);
}

TEST_F(SimClock, WaitingSkipsToTheEndOfTheWork) {
  const Env env = start();
  const Stream stream(env);
  const Nanoseconds launched = host_time();
  const Nanoseconds duration = launch(env, stream, 7 * kMillisecond);
  EXPECT_LT(host_time(), launched + 10 * kMicrosecond);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  EXPECT_GE(host_time(), launched + duration);
  EXPECT_LT(host_time(), launched + duration + kMicrosecond);
  // Waiting for finished work takes no time.
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_LT(host_time(), launched + duration + kMicrosecond);
}

TEST_F(SimClock, StreamsRunSideBySideAndWaitThroughEvents) {
  const Env env = start();
  const Stream first(env);
  const Stream second(env);
  const Event begin(env, CU_EVENT_DEFAULT);
  const Event first_done(env, CU_EVENT_DEFAULT);
  const Event second_done(env, CU_EVENT_DEFAULT);
  for (const bool wait : {false, true}) {
    CONTRACT_OK(env.api.event_record(begin, first));
    const Nanoseconds one = launch(env, first, 2 * kMillisecond);
    CONTRACT_OK(env.api.event_record(first_done, first));
    if (wait) {
      CONTRACT_OK(env.api.stream_wait_event(second, first_done, 0));
    }
    const Nanoseconds other = launch(env, second, kMillisecond);
    CONTRACT_OK(env.api.event_record(second_done, second));
    CONTRACT_OK(env.api.ctx_synchronize());
    EXPECT_NEAR(elapsed(env, begin, first_done), one, kMicrosecond);
    // Launched a few microseconds later.
    EXPECT_NEAR(elapsed(env, begin, second_done), wait ? one + other : other, 5 * kMicrosecond);
  }
}

TEST_F(SimClock, MemoryChangesInTheOrderOfTheEnds) {
  for (const bool first_is_longer : {false, true}) {
    const Env env = start();
    const Memory memory(env);
    const Stream first(env);
    const Stream second(env);
    launch(env, first, (first_is_longer ? 3 : 1) * kMillisecond);
    contract::fill_words(env, memory.base(), 1, 1, first);
    launch(env, second, 2 * kMillisecond);
    contract::fill_words(env, memory.base(), 2, 1, second);
    unsigned word = 9;
    ASSERT_EQ(ferro_sim_peek(memory.base(), &word, sizeof(word)), 0);
    EXPECT_EQ(word, 0U);
    CONTRACT_OK(env.api.ctx_synchronize());
    ASSERT_EQ(ferro_sim_peek(memory.base(), &word, sizeof(word)), 0);
    EXPECT_EQ(word, first_is_longer ? 1U : 2U);
  }
}

TEST_F(SimClock, WaitingLeavesWorkThatEndsLater) {
  const Env env = start();
  const Stream shorter(env);
  const Stream longer(env);
  launch(env, longer, 5 * kMillisecond);
  launch(env, shorter, kMillisecond);
  CONTRACT_OK(env.api.stream_synchronize(shorter));
  EXPECT_EQ(env.api.stream_query(longer), CUDA_ERROR_NOT_READY);
}

TEST_F(SimClock, HostWaitsForCopiesOfPageableMemoryAndForFreedMemory) {
  const Env env = start();
  const Memory memory(env);
  const Stream stream(env);
  HostWords pinned(env, 1);
  unsigned pageable = 0;
  Nanoseconds end = host_time() + launch(env, stream, kMillisecond);
  CONTRACT_OK(env.api.memcpy_dtoh_async(pinned.data(), memory.base(), 4, stream));
  EXPECT_LT(host_time(), end);
  CONTRACT_OK(env.api.memcpy_dtoh_async(&pageable, memory.base(), 4, stream));
  EXPECT_GE(host_time(), end);
  CUdeviceptr block = 0;
  CONTRACT_OK(env.api.mem_alloc(&block, 1 << 20));
  end = host_time() + launch(env, stream, kMillisecond);
  CONTRACT_OK(env.api.mem_free(block));
  EXPECT_GE(host_time(), end);
}

TEST_F(SimClock, AGraphTakesItsLongestPathOnceForEachLaunch) {
  const Env env = start();
  const Stream origin(env);
  const Stream side(env);
  const Event forked(env);
  const Event joined(env);
  contract::CaptureScope capture(env, origin);
  CONTRACT_OK(env.api.event_record(forked, origin));
  CONTRACT_OK(env.api.stream_wait_event(side, forked, 0));
  const Nanoseconds shorter = launch(env, side, kMillisecond);
  const Nanoseconds longer = launch(env, origin, 3 * kMillisecond);
  CONTRACT_OK(env.api.event_record(joined, side));
  CONTRACT_OK(env.api.stream_wait_event(origin, joined, 0));
  const Nanoseconds last = launch(env, origin, kMillisecond);
  const Executable exec(env, capture.finish());
  // The capture itself did nothing.
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_EQ(busy_time(), 0);
  EXPECT_LT(shorter, longer);
  const Nanoseconds launched = host_time();
  CONTRACT_OK(env.api.graph_launch(exec, origin));
  CONTRACT_OK(env.api.graph_launch(exec, side));
  EXPECT_LT(host_time(), launched + 10 * kMicrosecond);
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_NEAR(host_time() - launched, 2 * (longer + last), kMicrosecond);
}

TEST_F(SimClock, AFullLaunchQueueHoldsTheHost) {
  const Env env = start();
  const Stream stream(env);
  const Nanoseconds begun = host_time();
  Nanoseconds duration = 0;
  for (int i = 0; i < 1500; ++i) {
    duration = launch(env, stream, 100 * kMicrosecond);
  }
  EXPECT_EQ(ferro_sim_pending(), 1024U);
  EXPECT_NEAR(host_time() - begun, (1500 - 1024) * duration, duration);
}

TEST_F(SimClock, BusyIsTheTimeWithAnyWork) {
  const Env env = start();
  const Stream first(env);
  const Stream second(env);
  const Nanoseconds longer = launch(env, first, 3 * kMillisecond);
  launch(env, second, kMillisecond);
  EXPECT_LT(busy_time(), 10 * kMicrosecond);
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_NEAR(busy_time(), longer, kMicrosecond);
  const Nanoseconds idle = host_time();
  while (host_time() < idle + kMillisecond) {
    CONTRACT_OK(env.api.stream_query(first));
  }
  const Nanoseconds more = launch(env, second, kMillisecond);
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_NEAR(busy_time(), longer + more, kMicrosecond);
}

TEST_F(SimClock, TheSameProgramTakesTheSameTime) {
  std::vector<Nanoseconds> runs[2];
  for (auto& run : runs) {
    const Env env = start(7);
    const Memory memory(env, 2);
    const Stream streams[] = {Stream(env), Stream(env), Stream(env)};
    const Event event(env);
    std::mt19937 random(5);
    for (int i = 0; i < 300; ++i) {
      const Stream& stream = streams[random() % 3];
      switch (random() % 5) {
        case 0:
          launch(env, stream, 10 * kMicrosecond + random() % kMillisecond);
          break;
        case 1:
          CONTRACT_OK(
              env.api.memcpy_dtod_async(memory.at(1), memory.at(0), contract::kPage / 2, stream));
          break;
        case 2:
          CONTRACT_OK(env.api.event_record(event, stream));
          break;
        case 3:
          CONTRACT_OK(env.api.stream_wait_event(stream, event, 0));
          break;
        default:
          run.push_back(env.api.event_query(event));
          if (random() % 8 == 0) {
            CONTRACT_OK(env.api.stream_synchronize(stream));
          }
      }
      run.push_back(host_time());
    }
    CONTRACT_OK(env.api.ctx_synchronize());
    run.push_back(busy_time());
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// A host function that does not return holds later work of its stream, regardless of the clock.
TEST_F(SimClock, AHostFunctionHoldsItsStreamUntilItReturns) {
  const Env env = start();
  const Memory memory(env);
  const Stream held(env);
  const Stream other(env);
  const Event begin(env, CU_EVENT_DEFAULT);
  const Event end(env, CU_EVENT_DEFAULT);
  {
    CONTRACT_OK(env.api.event_record(begin, held));
    contract::Gate gate(env, held);
    contract::fill_words(env, memory.base(), 3, 1, held);
    CONTRACT_OK(env.api.event_record(end, held));
    launch(env, other, 5 * kMillisecond);
    CONTRACT_OK(env.api.stream_synchronize(other));
    EXPECT_EQ(env.api.stream_query(held), CUDA_ERROR_NOT_READY);
    gate.open();
    CONTRACT_OK(env.api.stream_synchronize(held));
  }
  // It returned after the other stream's work, so the work that it held ran later.
  EXPECT_GE(elapsed(env, begin, end), 5 * kMillisecond);
  EXPECT_EQ(contract::read_word(env, memory.base()), 3U);
}

TEST_F(SimClock, ManyThreadsShareTheClock) {
  const Env env = start(7);
  const Nanoseconds begun = host_time();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&env, &wrong, t] {
      env.api.ctx_set_current(env.context);
      const Memory memory(env);
      const Stream stream(env);
      HostWords words(env, 1);
      for (unsigned i = 0; i < 50; ++i) {
        launch(env, stream, 100 * kMicrosecond);
        contract::fill_words(env, memory.base(), t * 1000 + i, 16, stream);
        CONTRACT_OK(env.api.memcpy_dtoh_async(words.data(), memory.base(), 4, stream));
        CONTRACT_OK(env.api.stream_synchronize(stream));
        wrong += words[0] != t * 1000 + i ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GE(host_time() - begun, 50 * 100 * kMicrosecond);
}

TEST_F(SimClock, OtherModesHaveNoClock) {
  ASSERT_EQ(ferro_sim_start("mode=eager,memory=64MiB"), 0);
  const Env env = contract::open_env(sim_cuda_api(), true, true);
  const Stream stream(env);
  launch(env, stream, kMillisecond);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  EXPECT_EQ(host_time(), 0);
  EXPECT_EQ(busy_time(), 0);
}

}  // namespace sim_clock_test
}  // namespace ferro::sim
