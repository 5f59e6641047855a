// The simulated GPU: the order in which queued work runs.
#include "contract/all_cases.h"
#include "sim/driver_api.h"
#include "sim/machine/machine.h"

#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <string>

namespace ferro::sim {
namespace sim_scheduler_test {

using contract::Env;
using contract::Event;
using contract::Executable;
using contract::HostWords;
using contract::Memory;
using contract::Stream;

class SimScheduler : public ::testing::Test {
 protected:
  ~SimScheduler() override { Machine::stop(); }

  // `turn` is the share of calls in which queued work may run.
  Env start(std::uint64_t seed, double turn = 1e-9) {
    MachineConfig config;
    config.memory_bytes = 64 * kMiB;
    config.mode = TimeMode::kAdversarial;
    config.seed = seed;
    config.turn_probability = turn;
    Machine::start(config);
    return contract::open_env(sim_cuda_api(), true, false);
  }

  static std::size_t pending() {
    const std::lock_guard guard(Machine::lock());
    return Machine::current().scheduler().pending();
  }

  // A host function that adds one letter to the log.
  struct Letter {
    std::string* log;
    char letter;
  };
  void append(const Env& env, CUstream stream, char letter) {
    letters_.push_back(std::make_unique<Letter>(Letter{&log_, letter}));
    CONTRACT_OK(env.api.launch_host_func(
        stream,
        [](void* argument) {
          const auto* given = static_cast<Letter*>(argument);
          given->log->push_back(given->letter);
        },
        letters_.back().get()));
  }

  std::string take_log() { return std::exchange(log_, {}); }

 private:
  std::string log_;
  std::vector<std::unique_ptr<Letter>> letters_;
};

constexpr std::uint64_t kSeeds = 150;

TEST_F(SimScheduler, ReachesEveryLegalOrderOfTwoStreamsAndNoOther) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Env env = start(seed);
    const Stream first(env);
    const Stream second(env);
    append(env, first, 'a');
    append(env, second, 'x');
    append(env, first, 'b');
    append(env, second, 'y');
    CONTRACT_OK(env.api.ctx_synchronize());
    seen.insert(take_log());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb", "xyab"}));
}

TEST_F(SimScheduler, KeepsTheOrderOfAnEvent) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Env env = start(seed);
    const Stream first(env);
    const Stream second(env);
    const Event event(env);
    append(env, first, 'a');
    CONTRACT_OK(env.api.event_record(event, first));
    append(env, first, 'b');
    append(env, second, 'x');
    CONTRACT_OK(env.api.stream_wait_event(second, event, 0));
    append(env, second, 'y');
    CONTRACT_OK(env.api.ctx_synchronize());
    seen.insert(take_log());
  }
  // All orders but those in which y comes before a.
  EXPECT_EQ(seen, (std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb"}));
}

TEST_F(SimScheduler, LegacyStreamIsABarrierForBlockingStreamsOnly) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Env env = start(seed);
    const Stream blocking(env, CU_STREAM_DEFAULT);
    const Stream free_stream(env, CU_STREAM_NON_BLOCKING);
    append(env, blocking, 'a');
    append(env, nullptr, 'L');
    append(env, blocking, 'b');
    append(env, free_stream, 'x');
    CONTRACT_OK(env.api.ctx_synchronize());
    seen.insert(take_log());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"aLbx", "aLxb", "axLb", "xaLb"}));
}

TEST_F(SimScheduler, ReplaysAForkInEveryOrderOfTheGraph) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Env env = start(seed);
    const Stream origin(env);
    const Stream side(env);
    const Event forked(env);
    const Event joined(env);
    contract::CaptureScope capture(env, origin);
    append(env, origin, 'a');
    CONTRACT_OK(env.api.event_record(forked, origin));
    CONTRACT_OK(env.api.stream_wait_event(side, forked, 0));
    append(env, side, 's');
    append(env, origin, 'o');
    CONTRACT_OK(env.api.event_record(joined, side));
    CONTRACT_OK(env.api.stream_wait_event(origin, joined, 0));
    append(env, origin, 'z');
    const Executable exec(env, capture.finish());
    append(env, origin, '<');
    CONTRACT_OK(env.api.graph_launch(exec, origin));
    append(env, origin, '>');
    CONTRACT_OK(env.api.ctx_synchronize());
    seen.insert(take_log());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"<asoz>", "<aosz>"}));
}

TEST_F(SimScheduler, OrdersTwoLaunchesOfOneGraph) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Env env = start(seed);
    const Stream first(env);
    const Stream second(env);
    contract::CaptureScope capture(env, first);
    append(env, first, 'a');
    append(env, first, 'b');
    const Executable exec(env, capture.finish());
    CONTRACT_OK(env.api.graph_launch(exec, first));
    CONTRACT_OK(env.api.graph_launch(exec, second));
    CONTRACT_OK(env.api.ctx_synchronize());
    seen.insert(take_log());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"abab"}));
}

TEST_F(SimScheduler, WaitingRunsNoMoreThanNeeded) {
  const Env env = start(1);
  const Stream first(env);
  const Stream second(env);
  const Event event(env);
  append(env, first, 'a');
  CONTRACT_OK(env.api.event_record(event, first));
  append(env, first, 'b');
  append(env, second, 'x');
  CONTRACT_OK(env.api.event_synchronize(event));
  EXPECT_EQ(take_log(), "a");
  CONTRACT_OK(env.api.stream_synchronize(second));
  EXPECT_EQ(take_log(), "x");
  EXPECT_EQ(pending(), 1U);
  CONTRACT_OK(env.api.ctx_synchronize());
  EXPECT_EQ(take_log(), "b");
  EXPECT_EQ(pending(), 0U);
}

TEST_F(SimScheduler, WorkStaysQueuedUntilItsTurn) {
  const Env lazy = start(1);
  {
    const Memory memory(lazy);
    const Stream stream(lazy);
    for (int i = 0; i < 100; ++i) {
      contract::fill_words(lazy, memory.base(), 1, 1, stream);
    }
    EXPECT_EQ(pending(), 100U);
  }
  const Env eager_turns = start(1, 1.0);
  const Memory memory(eager_turns);
  const Stream stream(eager_turns);
  for (int i = 0; i < 100; ++i) {
    contract::fill_words(eager_turns, memory.base(), 1, 1, stream);
  }
  EXPECT_LE(pending(), 1U);
}

TEST_F(SimScheduler, FullQueueRunsWorkAtSubmission) {
  MachineConfig config;
  config.memory_bytes = 64 * kMiB;
  config.mode = TimeMode::kAdversarial;
  config.turn_probability = 1e-9;
  config.max_pending = 10;
  Machine::start(config);
  const Env env = contract::open_env(sim_cuda_api(), true, false);
  const Memory memory(env);
  const Stream stream(env);
  for (int i = 0; i < 100; ++i) {
    contract::fill_words(env, memory.base(), 1, 1, stream);
    EXPECT_LE(pending(), 10U);
  }
  EXPECT_EQ(pending(), 10U);
}

TEST_F(SimScheduler, SameSeedSameRun) {
  std::string runs[2];
  for (std::string& run : runs) {
    const Env env = start(77, 0.05);
    const Stream streams[] = {Stream(env), Stream(env), Stream(env)};
    for (int i = 0; i < 60; ++i) {
      append(env, streams[i % 3], static_cast<char>('A' + i));
    }
    CONTRACT_OK(env.api.ctx_synchronize());
    run = take_log();
  }
  EXPECT_EQ(runs[0].size(), 60U);
  EXPECT_EQ(runs[0], runs[1]);
}

// The purpose of the simulated GPU: it reveals a missing event wait of a program.
TEST_F(SimScheduler, MissingWaitShowsAsOldData) {
  std::set<unsigned> without_wait;
  std::set<unsigned> with_wait;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool wait : {false, true}) {
      const Env env = start(seed, 0.05);
      const Memory memory(env, 2);
      const Stream producer(env);
      const Stream consumer(env);
      const Event event(env);
      contract::fill_words(env, memory.at(0), 1, 1, producer);
      CONTRACT_OK(env.api.stream_synchronize(producer));
      contract::fill_words(env, memory.at(0), 2, 1, producer);
      CONTRACT_OK(env.api.event_record(event, producer));
      if (wait) {
        CONTRACT_OK(env.api.stream_wait_event(consumer, event, 0));
      }
      CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 4, consumer));
      CONTRACT_OK(env.api.ctx_synchronize());
      (wait ? with_wait : without_wait).insert(contract::read_word(env, memory.at(1)));
    }
  }
  EXPECT_EQ(without_wait, (std::set<unsigned>{1, 2}));
  EXPECT_EQ(with_wait, (std::set<unsigned>{2}));
}

TEST_F(SimScheduler, HostFunctionMayTakeALockOfTheCaller) {
  const Env env = start(3, 1.0);
  const Stream stream(env);
  std::mutex lock;
  {
    const std::lock_guard guard(lock);
    CONTRACT_OK(env.api.launch_host_func(
        stream, [](void* given) { const std::lock_guard inner(*static_cast<std::mutex*>(given)); },
        &lock));
    // This call starts the function; it must return although the function waits for this thread.
    EXPECT_EQ(env.api.stream_query(stream), CUDA_ERROR_NOT_READY);
  }
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

TEST_F(SimScheduler, FunctionsThatWaitForEachOtherBothEnd) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Env env = start(seed);
    const Stream streams[2] = {Stream(env), Stream(env)};
    std::latch both(2);
    const auto meet = [](void* latch) { static_cast<std::latch*>(latch)->arrive_and_wait(); };
    {
      const std::lock_guard guard(Machine::lock());
      Machine& machine = Machine::current();
      for (const Stream& stream : streams) {
        submit(machine.scheduler(), *machine.find_stream(stream), HostCall{meet, &both, true});
      }
    }
    EXPECT_EQ(pending(), 2U);
    CONTRACT_OK(env.api.ctx_synchronize());
    EXPECT_TRUE(both.try_wait());
    EXPECT_EQ(pending(), 0U);
  }
}

TEST_F(SimScheduler, ManyThreadsSynchroniseTheirOwnStreams) {
  const Env env = start(5, 0.05);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&env, &wrong, t] {
      env.api.ctx_set_current(env.context);
      const Memory memory(env, 2);
      const Stream stream(env);
      HostWords words(env, 1);
      for (unsigned i = 0; i < 100; ++i) {
        contract::fill_words(env, memory.at(0), t * 1000 + i, 16, stream);
        CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 64, stream));
        CONTRACT_OK(env.api.memcpy_dtoh_async(words.data(), memory.at(1), 4, stream));
        CONTRACT_OK(env.api.stream_synchronize(stream));
        wrong += words[0] != t * 1000 + i ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace sim_scheduler_test
}  // namespace ferro::sim
