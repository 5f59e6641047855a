// The buffers of cuSPARSE: as an H200 answered.
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

}  // namespace sim_sparse_sizes_test
}  // namespace ferro::sim
