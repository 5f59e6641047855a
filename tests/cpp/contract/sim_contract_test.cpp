// The driver contract on the simulated driver, in all kinds of time.
#include "contract/all_cases.h"
#include "sim/control.h"
#include "sim/driver_api.h"
#include "sim/machine/machine.h"

#include <gtest/gtest.h>

#include <tuple>

namespace ferro::contract {
namespace sim_contract_test {

constexpr int kEager = 0;
constexpr int kClock = -1;

// A case, and kEager, kClock or the seed of the adversarial scheduler.
class SimContract : public testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  void TearDown() override { sim::Machine::stop(); }
};

TEST_P(SimContract, Holds) {
  const auto& [the_case, seed] = GetParam();
  sim::MachineConfig config;
  config.devices = 2;
  config.memory_bytes = 256 * kMiB;
  config.mode = seed == kEager   ? sim::TimeMode::kEager
                : seed == kClock ? sim::TimeMode::kClock
                                 : sim::TimeMode::kAdversarial;
  config.seed = static_cast<std::uint64_t>(seed);  // unused in the other modes
  sim::Machine::start(config);
  Env env = open_env(sim::sim_cuda_api(), true, seed == kEager);
  env.waiting_threads = ferro_sim_waiting_threads;
  std::string skipped;
  try {
    the_case.run(env);
  } catch (const Skipped& reason) {
    skipped = reason.what();
  } catch (const Failure& failure) {
    ADD_FAILURE() << failure.what();
  }
  // Cases clean up after themselves, also when they fail. A failed device refuses to clean up.
  const std::unique_lock guard(sim::Machine::lock());
  sim::Machine& machine = sim::Machine::current();
  machine.scheduler().run_all();
  if (machine.device(0).context.sticky_error == CUDA_SUCCESS) {
    EXPECT_EQ(machine.space().mappings().size(), 0U);
    EXPECT_EQ(machine.space().reservations().size(), 0U);
    EXPECT_EQ(machine.space().handle_count(), 0U);
    for (int i = 0; i < machine.device_count(); ++i) {
      EXPECT_EQ(machine.device(i).memory.allocated(), 0U);
      EXPECT_EQ(machine.device(i).context.streams.size(), 0U);
      EXPECT_EQ(machine.device(i).context.events.size(), 0U);
    }
    EXPECT_EQ(machine.graphs().size(), 0U);
    EXPECT_EQ(machine.execs().size(), 0U);
    EXPECT_EQ(machine.captures().size(), 0U);
    EXPECT_EQ(machine.host().count(), 0U);
  }
  if (!skipped.empty()) {
    GTEST_SKIP() << skipped;
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Case, int>>& info) {
  const auto& [the_case, seed] = info.param;
  std::string name = the_case.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name + (seed == kEager   ? "_eager"
                 : seed == kClock ? "_clock"
                                  : "_seed" + std::to_string(seed));
}

INSTANTIATE_TEST_SUITE_P(Cases, SimContract,
                         testing::Combine(testing::ValuesIn(all_cases()),
                                          testing::Values(kEager, kClock, 1, 2, 3, 4)),
                         name_of);

}  // namespace sim_contract_test
}  // namespace ferro::contract
