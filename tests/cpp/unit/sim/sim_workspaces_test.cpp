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
// With groups, depthwise ones among them. Half of them were asked about because the trees of a
// training without them disagreed.
constexpr MeasuredConvolution kOfGroups[] = {
#include "workspaces_of_groups.inc"
};
// Of well-known networks, with workspaces of over 16 MiB, at batches or sizes that no tree was trained
// on.
constexpr MeasuredConvolution kLargeOfNetworks[] = {
#include "workspaces_of_large_networks.inc"
};
// In float32 without TF32, of networks of which no convolution was in the training.
constexpr MeasuredConvolution kWithoutTf32[] = {
#include "workspaces_without_tf32.inc"
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

// Their kernels run for eight of the 32 groups at a time: an H200 requests a quarter of copies of the
// images, the results and the weights. No tree was trained on them.
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

  shape.inputs = 2048;
  shape.outputs = 4096;
  shape.size = {16, 16, 1};
  const Workspace second = workspace_of(shape, Pass::kForward);
  EXPECT_FALSE(second.is_exact);
  EXPECT_NEAR(static_cast<double>(second.bytes), 386.25 * (1 << 20), 4096);
}

// An H200 requests 993 MiB. The trees learn factors of other shapes' products, which may be tiny, so
// that trees without a question about the unit answer with petabytes here.
TEST(Workspaces, OfTwoResultsForEachChannelStayWithinReason) {
  ConvolutionShape shape;
  shape.images = 256;
  shape.inputs = 256;
  shape.outputs = 512;
  shape.groups = 256;
  shape.element = 2;
  shape.channels_last = true;
  shape.size = {32, 32, 1};
  shape.window = {4, 4, 1};
  shape.padding = {1, 1, 0};
  const Workspace workspace = workspace_of(shape, Pass::kInputGradient);
  EXPECT_FALSE(workspace.is_exact);
  EXPECT_GE(workspace.bytes, 512 << 20);
  EXPECT_LE(workspace.bytes, 1536 << 20);
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
double share_of_near(std::span<const MeasuredConvolution> others, Pass pass,
                     bool allows_tf32 = true) {
  const auto near = std::ranges::count_if(others, [&](const MeasuredConvolution& other) {
    ConvolutionShape s = shape_of(other);
    s.allows_tf32 = allows_tf32;
    const auto predicted = static_cast<std::int64_t>(workspace_of(s, pass).bytes);
    const std::int64_t allowed = std::max<std::int64_t>(s.tensor_bytes() / 10, 1 << 20);
    return std::abs(predicted - bytes_of(other, pass)) <= allowed;
  });
  return static_cast<double>(near) / static_cast<double>(others.size());
}

// Wrong by a factor of two, and by 64 MiB.
std::int64_t count_of_gross_errors(std::span<const MeasuredConvolution> others) {
  std::int64_t count = 0;
  for (const MeasuredConvolution& other : others) {
    for (const Pass pass : {Pass::kForward, Pass::kInputGradient, Pass::kWeightGradient}) {
      const auto predicted = static_cast<std::int64_t>(workspace_of(shape_of(other), pass).bytes);
      const auto [less, more] = std::minmax({predicted, bytes_of(other, pass)});
      count += more >= 2 * less && more - less >= 64 << 20 ? 1 : 0;
    }
  }
  return count;
}

// Wrong by a tenth, and by over 16 MiB.
std::int64_t count_of_large_errors(std::span<const MeasuredConvolution> others, Pass pass) {
  return std::ranges::count_if(others, [&](const MeasuredConvolution& other) {
    const auto predicted = static_cast<std::int64_t>(workspace_of(shape_of(other), pass).bytes);
    const std::int64_t difference = std::abs(predicted - bytes_of(other, pass));
    return difference > 16 << 20 && difference > bytes_of(other, pass) / 10;
  });
}

// Trees that were not trained on convolutions of networks have 20, 17 and 35.
TEST(Workspaces, OfKnownNetworksHaveFewLargeErrors) {
  EXPECT_LE(count_of_large_errors(kLargeOfNetworks, Pass::kForward), 7);  // of 494
  EXPECT_LE(count_of_large_errors(kLargeOfNetworks, Pass::kInputGradient), 5);
  EXPECT_LE(count_of_large_errors(kLargeOfNetworks, Pass::kWeightGradient), 15);
}

TEST(Workspaces, OfNetworksAreMostlyNear) {
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kForward), 0.96);
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kInputGradient), 0.97);
  EXPECT_GE(share_of_near(kOfNetworks, Pass::kWeightGradient), 0.88);
}

TEST(Workspaces, OfRandomShapesAreMostlyNear) {
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kForward), 0.94);
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kInputGradient), 0.95);
  EXPECT_GE(share_of_near(kOfRandomShapes, Pass::kWeightGradient), 0.86);
}

TEST(Workspaces, OfGroupsAreMostlyNear) {
  EXPECT_GE(share_of_near(kOfGroups, Pass::kForward), 0.91);
  EXPECT_GE(share_of_near(kOfGroups, Pass::kInputGradient), 0.91);
  EXPECT_GE(share_of_near(kOfGroups, Pass::kWeightGradient), 0.76);
}

// The trees of those with TF32 have 0.41, 0.41 and 0.50.
TEST(Workspaces, WithoutTf32AreMostlyNear) {
  EXPECT_GE(share_of_near(kWithoutTf32, Pass::kForward, false), 0.97);
  EXPECT_GE(share_of_near(kWithoutTf32, Pass::kInputGradient, false), 0.96);
  EXPECT_GE(share_of_near(kWithoutTf32, Pass::kWeightGradient, false), 0.86);
}

// The table has the choice with TF32.
TEST(Workspaces, WithoutTf32AreTheirOwn) {
  ConvolutionShape shape = kMeasured;
  shape.allows_tf32 = false;
  EXPECT_FALSE(workspace_of(shape, Pass::kForward).is_exact);
  EXPECT_NE(workspace_of(shape, Pass::kForward).bytes, 100'958'355);
}

TEST(Workspaces, AreSeldomGrosslyWrong) {
  EXPECT_LE(count_of_gross_errors(kOfNetworks), 7);       // of 1,500
  EXPECT_LE(count_of_gross_errors(kOfRandomShapes), 13);  // of 1,494
  EXPECT_LE(count_of_gross_errors(kOfGroups), 37);        // of 900
}

}  // namespace sim_workspaces_test
}  // namespace ferro::sim
