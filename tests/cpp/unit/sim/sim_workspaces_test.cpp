// Workspaces of convolutions: measured ones are exact, and decision trees predict the others.
#include "sim/libraries/cudnn/measured.h"
#include "sim/libraries/cudnn/workspaces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace ferro::sim {
namespace sim_workspaces_test {

// As an H200 requested them (cuDNN 9.19). None is in the simulator's table, and no tree was trained
// on them.
constexpr MeasuredConvolution kOfNetworks[] = {
#include "workspaces_of_networks.inc"
};
constexpr MeasuredConvolution kOfRandomShapes[] = {
#include "workspaces.inc"
};

constexpr ConvolutionShape kMeasured = {.images = 128,
                                        .inputs = 128,
                                        .outputs = 64,
                                        .size = {32, 32, 1},
                                        .window = {3, 3, 1},
                                        .padding = {1, 1, 0}};

TEST(Workspaces, OfMeasuredConvolutionsAreExact) {
  EXPECT_EQ(workspace_of(kMeasured, Pass::kForward).bytes, 100'958'355);
  EXPECT_EQ(workspace_of(kMeasured, Pass::kInputGradient).bytes, 100'958'355);
  // The kernel of Winograd needs several times the memory of the tensors.
  EXPECT_EQ(workspace_of(kMeasured, Pass::kWeightGradient).bytes, 864'026'624);
  EXPECT_TRUE(workspace_of(kMeasured, Pass::kForward).is_exact);
  ConvolutionShape shape = kMeasured;
  shape.images = 127;
  EXPECT_FALSE(workspace_of(shape, Pass::kForward).is_exact);
}

// Its tensors and its number of window positions are those of a measured convolution.
TEST(Workspaces, OfDilatedConvolutionsAreTheirOwn) {
  ConvolutionShape shape = kMeasured;
  shape.padding = {2, 2, 0};
  shape.dilation = {2, 2, 1};
  ASSERT_EQ(shape.output_places(), 32 * 32);
  EXPECT_FALSE(workspace_of(shape, Pass::kForward).is_exact);
}

// Its kernel runs for eight of the 32 groups at a time: an H200 requests a quarter of copies of the
// images, the results and the weights. No tree was trained on it.
TEST(Workspaces, OfManyGroupsAreForEightOfThem) {
  ConvolutionShape shape = kMeasured;
  shape.images = 512;
  shape.inputs = 1024;
  shape.outputs = 2048;
  shape.groups = 32;
  shape.stride = {2, 2, 1};
  const Workspace workspace = workspace_of(shape, Pass::kForward);
  EXPECT_FALSE(workspace.is_exact);
  EXPECT_NEAR(static_cast<double>(workspace.bytes), 768.5625 * (1 << 20), 4096);
}

// Lines of the table have 31 bits for most numbers.
TEST(Workspaces, OfMeasuredConvolutionsMayBeLarge) {
  ConvolutionShape shape;
  shape.images = 512;
  shape.inputs = 3;
  shape.outputs = 32;
  shape.element = 2;
  shape.is_half = true;
  shape.size = {128, 128, 1};
  shape.window = {7, 7, 1};
  shape.padding = {3, 3, 0};
  EXPECT_EQ(workspace_of(shape, Pass::kForward).bytes, 8'657'062'272);
  EXPECT_EQ(workspace_of(shape, Pass::kInputGradient).bytes, 671'113'744);
  EXPECT_EQ(workspace_of(shape, Pass::kWeightGradient).bytes, 675'047'039);
}

// Near: within a tenth of the tensors, or within 1 MiB.
double share_of_near(std::span<const MeasuredConvolution> others, Pass pass) {
  const auto near = std::ranges::count_if(others, [&](const MeasuredConvolution& other) {
    const ConvolutionShape s = shape_of(other);
    const auto predicted = static_cast<std::int64_t>(workspace_of(s, pass).bytes);
    const std::int64_t allowed = std::max<std::int64_t>(s.tensor_bytes() / 10, 1 << 20);
    return std::abs(predicted - bytes_of(other, pass)) <= allowed;
  });
  return static_cast<double>(near) / static_cast<double>(others.size());
}

TEST(Workspaces, OfNetworksAreMostlyNear) {
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kForward), 0.96);
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kInputGradient), 0.97);
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kWeightGradient), 0.86);
}

TEST(Workspaces, OfRandomShapesAreMostlyNear) {
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kForward), 0.92);
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kInputGradient), 0.94);
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kWeightGradient), 0.86);
}

}  // namespace sim_workspaces_test
}  // namespace ferro::sim
