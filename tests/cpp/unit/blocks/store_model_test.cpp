// Random programs on a page store and a naive model of it, with fixed seeds. The fuzzer
// fuzz/store_fuzz.cpp runs the same.
#include "support/store_model.h"

#include "support/random_bytes.h"

#include <gtest/gtest.h>

namespace ferro::testing {
namespace store_model_test {

class StoreModelTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(StoreModelTest, AgreesWithTheModel) {
  const auto bytes = random_bytes(GetParam(), 4000);
  ASSERT_NO_THROW(
      run_store_program(decode_store(bytes.data(), bytes.size()), handle_rules(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreModelTest, ::testing::Range(1U, 41U));

}  // namespace store_model_test
}  // namespace ferro::testing
