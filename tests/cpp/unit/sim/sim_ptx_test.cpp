// What PTX and mangled names tell about the parameters of kernels.
#include "sim/machine/mangled.h"
#include "sim/machine/ptx.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ferro::sim {
namespace sim_ptx_test {

std::vector<std::vector<std::size_t>> layout(const Parameters& parameters) {
  std::vector<std::vector<std::size_t>> found;
  for (const auto& [offset, bytes] : parameters) {
    found.push_back({offset, bytes});
  }
  return found;
}

TEST(SimPtx, ListsTheParametersOfKernels) {
  const auto found = read_ptx_parameters(R"(
//
.version 9.0
.target sm_90a
.func (.param .b32 r) helper(.param .b32 a) { ret; }
.visible .entry first(
  .param .u64 .ptr .global .align 4 first_param_0,
  .param .u32 first_param_1, /* a , ) */
  .param .align 16 .b8 first_param_2[40], // a ) too
  .param .f16 first_param_3
)
.maxntid 1024
{ ret; }
.entry second() { ret; }
.entry third { ret; }
.entry fourth(.param .texref texture) { ret; })");
  ASSERT_EQ(found.size(), 3U);
  using Layout = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(layout(found.at("first")), (Layout{{0, 8}, {8, 4}, {16, 40}, {56, 2}}));
  EXPECT_TRUE(found.at("second").empty());
  EXPECT_TRUE(found.at("third").empty());
  EXPECT_TRUE(read_ptx_parameters("").empty());
  EXPECT_TRUE(read_ptx_parameters(".entry cut(.param .u64 ").empty());
}

TEST(SimMangled, FindsPointersToConstants) {
  using Found = std::vector<bool>;
  // histogram(int const*, int*, int)
  EXPECT_EQ(pointers_to_constants("_Z9histogramPKiPii", 3), (Found{true, false, false}));
  // void add<float, 4>(float const*, float*, std::pair<int, float*>)
  EXPECT_EQ(pointers_to_constants("_Z3addIfLi4EEvPKT_PS0_St4pairIiPfE", 3),
            (Found{true, false, false}));
  // of pointers: f(int* const*)
  EXPECT_EQ(pointers_to_constants("_Z1fPKPi", 1), Found{false});
  EXPECT_EQ(pointers_to_constants("_Z9histogramPKiPii", 2), (Found{false, false}));
  EXPECT_EQ(pointers_to_constants("histogram", 1), Found{false});
  EXPECT_EQ(pointers_to_constants("_Z1fv", 0), Found{});
}

}  // namespace sim_ptx_test
}  // namespace ferro::sim
