// Random programs on a device's memory and a naive model of it, with fixed seeds. The fuzzer
// fuzz/heap_fuzz.cpp runs the same.
#include "model/device_model.h"

#include "support/random_bytes.h"

#include <gtest/gtest.h>

namespace ferro::testing {
namespace device_model_test {

Program random_program(unsigned seed) {
  const auto bytes = random_bytes(seed, 3000);
  return decode(bytes.data(), bytes.size());
}

class DeviceModelTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(DeviceModelTest, WorkCompletesAtExplicitSteps) {
  ASSERT_NO_THROW(run_program(random_program(GetParam())));
}

TEST_P(DeviceModelTest, WorkCompletesInAnyOrder) {
  const std::string seed = std::to_string(GetParam());
  ASSERT_NO_THROW(
      run_program(random_program(1000 + GetParam()), "mode=adversarial,turn=0.05,seed=" + seed));
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceModelTest, ::testing::Range(1U, 61U));

}  // namespace device_model_test
}  // namespace ferro::testing
