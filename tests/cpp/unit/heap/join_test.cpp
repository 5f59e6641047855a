// A block of many pages that is moved behind one handle while other threads go on.
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace ferro {
namespace join_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

// The driver's table, with what another thread does just before a block is copied.
struct BeforeCopy {
  static inline std::function<void()> act;
  static const CudaApi& table() {
    static const CudaApi table = [] {
      CudaApi made = FaultyApi::table();
      made.memcpy_dtod_async = [](CUdeviceptr to, CUdeviceptr from, std::size_t count,
                                  CUstream stream) {
        std::exchange(act, nullptr)();
        return FaultyApi::table().memcpy_dtod_async(to, from, count, stream);
      };
      return made;
    }();
    return table;
  }
};

class JoinTest : public testing::HeapFixture {
 protected:
  ~JoinTest() override { drain(heap_); }

  Driver hooked_{BeforeCopy::table(), 0};
  const HeapContext hooked_context_{hooked_,   store_,    stale_,           events_,
                                    timeline_, exports_,  addresses_,       stats_,
                                    captures_, observer_, with_free_pages_, with_pending_};
  Heap heap_{hooked_context_, kDefaultPool, stream_};
};

TEST_F(JoinTest, FreeMemoryOnItsPagesIsNotHandedOutMeanwhile) {
  const DevicePtr before = grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 20 * kPageBytes);
  free(heap_, before);
  DevicePtr meanwhile = before;
  BeforeCopy::act = [&] { meanwhile = heap_.allocate_hit(bytes(512)); };
  SharedRange range;
  ASSERT_EQ(heap_.export_block(*addresses_.find(block), block, {}, &range), ExportResult::kOk);
  EXPECT_EQ(range.begin, before);
  EXPECT_EQ(range.units.size(), 1U);
  EXPECT_EQ(meanwhile, kNull) << "what is written there now would not be copied";
  EXPECT_EQ(heap_.allocate_hit(bytes(512)), before) << "now it can be had";
}

}  // namespace join_test
}  // namespace ferro
