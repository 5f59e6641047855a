// Random programs of groups that lend their scratch, with fixed seeds; and faults that are planted,
// each of which the model finds.
#include "model/device_model.h"
#include "support/random_bytes.h"
#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <string>

namespace ferro::testing {
namespace {

Program lending_program(unsigned seed) {
  const auto bytes = random_bytes(seed, 3000);
  return decode(bytes.data(), bytes.size(), true);
}

std::string any_order(unsigned seed) {
  return "mode=adversarial,turn=0.05,seed=" + std::to_string(seed);
}

class LendingModelTest : public ::testing::TestWithParam<unsigned> {
 public:
  // The address sanitizer takes 20 times as long.
  static constexpr unsigned kSeeds = kAddressSanitizer ? 5 : 30;

 protected:
  static void run(unsigned seed, const std::string& settings) {
    LendingCounts counts;
    ASSERT_NO_THROW(counts = run_program(lending_program(seed), settings, 1));
    total_.lent += counts.lent;
    total_.back += counts.back;
    total_.refused += counts.refused;
    ++runs_;
  }
  static inline LendingCounts total_;
  static inline unsigned runs_ = 0;
};

TEST_P(LendingModelTest, WorkCompletesWhenTold) { run(GetParam(), SimGpu::kManual); }

TEST_P(LendingModelTest, WorkCompletesInAnyOrder) {
  run(2000 + GetParam(), any_order(GetParam()));
  // Programs in which nothing is lent show nothing; only where all of them have run.
  if (runs_ == 2 * kSeeds) {
    EXPECT_GT(total_.lent, 2 * kSeeds);
    EXPECT_GT(total_.back, kSeeds / 2);
    EXPECT_GT(total_.refused, 3 * kSeeds);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LendingModelTest,
                         ::testing::Range(1U, LendingModelTest::kSeeds + 1));

// A graph with scratch of 16 pages and a result, in a group that lends.
std::vector<Instruction> lending_graph() {
  return {JoinGroup{0, 0}, CaptureGraph{0, 0, 16, 1}, SetLends{0, true}};
}

LendingCounts run_after(std::vector<Instruction> program, std::vector<Instruction> more,
                        Planted planted) {
  program.insert(program.end(), more.begin(), more.end());
  return run_program({{.groups = true, .lends = true}, program}, SimGpu::kManual, 1, planted);
}

struct PlantedCase {
  Planted planted;
  std::vector<Instruction> instructions;  // that find it, after `lending_graph`
  unsigned lent, back, refused;           // without it
};

class PlantedTest : public ::testing::TestWithParam<PlantedCase> {};

TEST_P(PlantedTest, IsFound) {
  const auto& [planted, instructions, lent, back, refused] = GetParam();
  const LendingCounts counts = run_after(lending_graph(), instructions, Planted::kNone);
  EXPECT_EQ(counts.lent, lent);
  EXPECT_EQ(counts.back, back);
  EXPECT_EQ(counts.refused, refused);
  EXPECT_THROW(run_after(lending_graph(), instructions, planted), ModelError);
}

TEST_P(PlantedTest, IsFoundByRandomPrograms) {
  unsigned seed = 1;
  const auto is_found = [&] {
    try {
      run_program(lending_program(seed), any_order(seed), 1, GetParam().planted);
    } catch (const ModelError&) {
      return true;
    }
    return false;
  };
  while (seed <= 20 && !is_found()) {
    ++seed;
  }
  EXPECT_LE(seed, 20U);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, PlantedTest,
    ::testing::Values(
        // The replay has not run when its scratch goes.
        PlantedCase{
            Planted::kNoWait, {Replay{0, 0}, Allocate{0, 1, 30 * kPageBytes}, Finish{0}}, 1, 0, 0},
        PlantedCase{Planted::kPastTheGate, {Replay{0, 0, 30}}, 0, 0, 0},
        PlantedCase{Planted::kUnasked,
                    {Allocate{0, 1, 30 * kPageBytes}, Replay{0, 0}, Finish{0}},
                    1,
                    0,
                    1}));

}  // namespace
}  // namespace ferro::testing
