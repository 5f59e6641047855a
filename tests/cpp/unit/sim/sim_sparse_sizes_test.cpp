// The buffers of cuSPARSE, and the workspace of cuDNN's CTC loss: as an H200 answered.
#include "sim/libraries/cudnn/workspaces.h"
#include "sim/libraries/cusparse/workspaces.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <library_types.h>

namespace ferro::sim {
namespace sim_sparse_sizes_test {

struct Product {
  std::int64_t rows, products, left_count;
  cudaDataType type;
  std::size_t estimation, buffer;
};
constexpr Product kProducts[] = {
#include "sparse_products.inc"
};

TEST(SparseSizes, OfProductsOfTwoMatricesAreExact) {
  for (const Product& product : kProducts) {
    EXPECT_EQ(estimation_buffer(product.left_count), product.estimation);
    EXPECT_EQ(sparse_product_buffer(product.rows, product.products, product.type), product.buffer)
        << product.rows << " rows, " << product.products << " products";
  }
}

TEST(SparseSizes, OfSumsDependOnTheRows) {
  EXPECT_EQ(sum_buffer(1), 512);
  EXPECT_EQ(sum_buffer(10'000), 512);
  EXPECT_EQ(sum_buffer(100'000), 896);
  EXPECT_EQ(sum_buffer(1'000'000), 4352);
}

struct Loss {
  std::int64_t steps, sequences, classes, most_labels;
  std::size_t from_host, on_device;
};
constexpr Loss kLosses[] = {
#include "ctc_losses.inc"
};

TEST(CtcLoss, WorkspacesAreExact) {
  constexpr std::int64_t kAllowed = 255;
  for (const auto& [steps, sequences, classes, most, from_host, on_device] : kLosses) {
    EXPECT_EQ(ctc_loss_workspace(steps, sequences, classes, most, true), from_host);
    EXPECT_EQ(ctc_loss_workspace(steps, sequences, classes, kAllowed, false), on_device);
  }
}

}  // namespace sim_sparse_sizes_test
}  // namespace ferro::sim
