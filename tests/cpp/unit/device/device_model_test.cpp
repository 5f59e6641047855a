// Random programs on a device's memory and a naive model of it, with fixed seeds. The fuzzer
// fuzz/heap_fuzz.cpp runs the same.
//
// The model knows what is right; of right programs the record knows what they did before. After a
// change that is meant, write it again, and look at what the numbers with names say:
//
//   export FERRO_RECORD=tests/cpp/unit/device/recorded_programs.inc
//   rm $FERRO_RECORD
//   build/cpp-release/tests/cpp/unit_tests --gtest_filter='Seeds/DeviceModelTest.*'
#include "model/device_model.h"

#include "support/random_bytes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace ferro::testing {
namespace device_model_test {

Program random_program(unsigned seed) {
  const auto bytes = random_bytes(seed, 3000);
  return decode(bytes.data(), bytes.size());
}

// By the name of the program.
const std::map<std::string, std::string>& recorded_programs() {
  static const std::map<std::string, std::string> recorded{
#include "unit/device/recorded_programs.inc"
  };
  return recorded;
}

// The numbers that differ, each as "name=now (recorded before)".
std::string difference(const std::string& now, const std::string& recorded) {
  std::istringstream fields(now);
  std::istringstream before(recorded);
  std::string text;
  std::string field;
  std::string old;
  while (fields >> field) {
    before >> old;
    if (field != old) {
      text += field + " (recorded " + old.substr(old.find('=') + 1) + ") ";
    }
  }
  return text;
}

void compare(const std::string& program, const std::string& record) {
  if (const char* file = std::getenv("FERRO_RECORD"); file != nullptr) {
    std::ofstream(file, std::ios::app) << "{\"" << program << "\",\n \"" << record << "\"},\n";
    return;
  }
  const auto recorded = recorded_programs().find(program);
  ASSERT_NE(recorded, recorded_programs().end()) << program << " is not recorded";
  EXPECT_EQ(record, recorded->second)
      << program << " did something else: " << difference(record, recorded->second);
}

class DeviceModelTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(DeviceModelTest, WorkCompletesAtExplicitSteps) {
  std::string record;
  ASSERT_NO_THROW(record = run_program(random_program(GetParam())));
  compare("steps " + std::to_string(GetParam()), record);
}

TEST_P(DeviceModelTest, WorkCompletesInAnyOrder) {
  const std::string seed = std::to_string(GetParam());
  std::string record;
  ASSERT_NO_THROW(record = run_program(random_program(1000 + GetParam()),
                                       "mode=adversarial,turn=0.05,seed=" + seed));
  compare("order " + seed, record);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceModelTest, ::testing::Range(1U, 61U));

}  // namespace device_model_test
}  // namespace ferro::testing
