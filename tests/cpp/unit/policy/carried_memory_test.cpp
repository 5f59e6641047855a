#include "ferro/core/policy/carried_memory.h"

#include <gtest/gtest.h>

namespace ferro {
namespace carried_memory_test {

constexpr DevicePtr kInput{0x1000};
constexpr DevicePtr kResult{0x2000};
constexpr DevicePtr kWorkspace{0x3000};
constexpr std::size_t kSize = 512;

AddressRanges ranges_of(std::initializer_list<DevicePtr> blocks) {
  AddressRanges ranges;
  for (const DevicePtr ptr : blocks) {
    ranges.add(ptr, kSize);
  }
  return ranges;
}

// Records a capture with these blocks live at its begin and at its end.
void capture(CarriedMemory& memory, const AddressRanges& before, const AddressRanges& after) {
  memory.begin([&] { return before; });
  memory.end(true, [&] { return after; });
}

bool carries(CarriedMemory& memory, DevicePtr ptr) { return memory.ranges().overlaps(ptr, kSize); }

TEST(CarriedMemoryTest, InputsAndWhatIsInTheCheckpoint) {
  CarriedMemory memory;
  capture(memory, ranges_of({kInput}), ranges_of({kResult, kWorkspace}));
  EXPECT_TRUE(memory.expect_checkpoints());
  memory.on_checkpoint(ranges_of({kResult}));
  EXPECT_TRUE(carries(memory, kInput));
  EXPECT_TRUE(carries(memory, kResult));
  EXPECT_FALSE(carries(memory, kWorkspace)) << "the recording freed it";
}

TEST(CarriedMemoryTest, WithoutACheckpointAllThatLivedAtTheEnd) {
  CarriedMemory memory;
  EXPECT_TRUE(memory.expect_checkpoints());
  capture(memory, {}, ranges_of({kResult}));
  capture(memory, {}, ranges_of({kWorkspace}));
  EXPECT_TRUE(carries(memory, kResult));
  EXPECT_TRUE(carries(memory, kWorkspace));
}

TEST(CarriedMemoryTest, ARestorationReleasesNothing) {
  CarriedMemory memory;
  EXPECT_TRUE(memory.expect_checkpoints());
  capture(memory, {}, ranges_of({kResult}));
  memory.on_restore(ranges_of({kInput}));
  EXPECT_TRUE(carries(memory, kResult)) << "there is no checkpoint of this graph";
  EXPECT_TRUE(carries(memory, kInput));
}

TEST(CarriedMemoryTest, ACaptureThatFailsKeepsNothing) {
  CarriedMemory memory;
  memory.begin([] { return ranges_of({kInput}); });
  EXPECT_FALSE(memory.has_news());
  memory.end(false, [] { return ranges_of({kResult}); });
  EXPECT_TRUE(memory.has_news());
  EXPECT_TRUE(carries(memory, kInput));
  EXPECT_FALSE(carries(memory, kResult));
}

TEST(CarriedMemoryTest, APoolOutsideOfTreesIsNotScanned) {
  CarriedMemory memory;
  capture(memory, {}, {});  // with which trees begin
  capture(memory, ranges_of({kInput}), ranges_of({kResult}));
  int asked = 0;
  const auto ask = [&] {
    ++asked;
    return AddressRanges{};
  };
  for (int i = 0; i < 3; ++i) {
    memory.begin(ask);
    memory.end(true, ask);
  }
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(memory.ranges().bytes(), 0U);
  EXPECT_FALSE(memory.expect_checkpoints()) << "what it carried is unknown";
  memory.settle(ranges_of({kInput, kResult}));
  EXPECT_TRUE(carries(memory, kResult));
  EXPECT_FALSE(memory.has_news());
}

TEST(CarriedMemoryTest, AnEndWithoutABeginIsOfNoCapture) {
  CarriedMemory memory;
  memory.end(true, [] { return ranges_of({kResult}); });
  EXPECT_FALSE(memory.has_news());
  EXPECT_FALSE(carries(memory, kResult));
}

TEST(CarriedMemoryTest, WithoutGraphsNothingIsCarried) {
  CarriedMemory memory;
  EXPECT_TRUE(memory.expect_checkpoints());
  capture(memory, ranges_of({kInput}), ranges_of({kResult}));
  memory.forget();
  EXPECT_EQ(memory.ranges().bytes(), 0U);
  EXPECT_FALSE(memory.has_news());
  EXPECT_TRUE(memory.is_of_tree());
}

}  // namespace carried_memory_test
}  // namespace ferro
