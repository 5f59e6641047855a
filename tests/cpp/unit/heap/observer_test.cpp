// The events of a heap and a device: their time and their context.
#include "ferro/core/types/observer.h"

#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ferro {
namespace observer_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class Recorder final : public MemoryObserver {
 public:
  void on_event(const EventFacts& event) noexcept override {
    static constexpr const char* kNames[] = {"alloc", "free_requested", "free_completed", "mapped",
                                             "unmapped"};
    const auto* context = static_cast<const std::string*>(event.context.get());
    lines.push_back(std::string(kNames[static_cast<int>(event.what)]) + " " +
                    std::to_string(event.size) + (context != nullptr ? " " + *context : ""));
    if (event.range.reason != nullptr) {
      reasons.push_back(std::string(event.range.reason) + " " +
                        std::to_string(event.range.pages_moved));
      all_took_time =
          all_took_time && (event.what == MemoryEvent::kUnmapped || event.range.nanoseconds != 0);
    }
    last_used_pages = SimGpu::used_pages();
  }
  std::vector<std::string> take() { return std::exchange(lines, {}); }

  std::vector<std::string> lines;
  std::vector<std::string> reasons;  // of ranges, with the number of pages that moved
  bool all_took_time = true;         // mapped ranges
  std::uint64_t last_used_pages = 0;
};

using Lines = std::vector<std::string>;

CallContext here(const char* name) { return std::make_shared<std::string>(name); }

class ObserverTest : public testing::DeviceFixture {
 protected:
  ObserverTest() { device_->set_observer(&recorder_); }
  ~ObserverTest() override { device_->set_observer(nullptr); }

  DevicePtr allocate_at(std::size_t size, const CallContext& context) {
    return device_->allocate(kDefaultPool, stream_, {size, size - 1, context}).ptr;
  }
  void free_at(DevicePtr ptr, const CallContext& context) {
    EXPECT_EQ(heap_of(ptr).free(*addresses_.find(ptr), ptr, context).error, FreeError::kNone);
  }

  Recorder recorder_;
};

TEST_F(ObserverTest, MapEventsPrecedeTheBlocksAndSizesAreRequested) {
  const DevicePtr ptr = allocate_at(1024, here("a"));
  EXPECT_EQ(recorder_.take(), (Lines{"mapped 2097152 a", "alloc 1023 a"}));
  free_at(ptr, here("b"));
  EXPECT_EQ(recorder_.take(), (Lines{"free_requested 1023 b", "free_completed 1023 b"}));
}

TEST_F(ObserverTest, AFreeWithoutAContextShowsThatOfTheAllocation) {
  free_at(allocate_at(1024, here("a")), nullptr);
  recorder_.lines.erase(recorder_.lines.begin());
  EXPECT_EQ(recorder_.take(),
            (Lines{"alloc 1023 a", "free_requested 1023 a", "free_completed 1023 a"}));
}

TEST_F(ObserverTest, AFreeThatWaitsCompletesLater) {
  const DevicePtr ptr = allocate_at(1024, here("a"));
  recorder_.take();
  free_used_by(ptr, side_);
  EXPECT_EQ(recorder_.take(), (Lines{"free_requested 1023 a"}));
  SimGpu::finish_all();
  device_->collect_pending();
  EXPECT_EQ(recorder_.take(), (Lines{"free_completed 1023 a"}));
}

TEST_F(ObserverTest, UnmapEventsPrecedeTheUnmap) {
  free_at(allocate_at(kPageBytes, nullptr), nullptr);
  recorder_.take();
  device_->empty_cache(here("empty"));
  EXPECT_EQ(recorder_.take(), (Lines{"unmapped 2097152 empty"}));
  EXPECT_EQ(recorder_.last_used_pages, 1U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

TEST_F(ObserverTest, ARetriedUnmapIsNotNotifiedAgain) {
  free_at(allocate_at(kPageBytes, nullptr), nullptr);
  recorder_.take();
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  device_->empty_cache();
  EXPECT_EQ(recorder_.take(), (Lines{"unmapped 2097152"}));
  EXPECT_STREQ(FaultyApi::failed(), "cuMemUnmap");
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

TEST_F(ObserverTest, MovedPagesLeaveOneRangeForTheOther) {
  const DevicePtr first = allocate_at(2 * kPageBytes, nullptr);
  const DevicePtr wall = allocate_at(kPageBytes, nullptr);
  free_at(first, nullptr);
  recorder_.take();
  const DevicePtr moved = allocate_at(3 * kPageBytes, here("larger"));
  EXPECT_GT(moved, wall);
  // Two pages move and one is new.
  EXPECT_EQ(recorder_.take(),
            (Lines{"unmapped 4194304 larger", "mapped 6291456 larger", "alloc 6291455 larger"}));
  EXPECT_EQ(recorder_.reasons, (Lines{"grow 0", "grow 0", "moved 0", "grow 2"}));
  EXPECT_TRUE(recorder_.all_took_time);
}

TEST_F(ObserverTest, RangesHaveTheirStepAndTheReasonOfTheirRemoval) {
  const DevicePtr first = allocate_at(2 * kPageBytes, nullptr);
  const DevicePtr wall = allocate_at(kPageBytes, nullptr);
  const DevicePtr last = allocate_at(2 * kPageBytes, nullptr);
  allocate_at(kPageBytes, nullptr);
  free_at(first, nullptr);
  free_at(last, nullptr);
  recorder_.reasons.clear();
  free_at(allocate_at(4 * kPageBytes, nullptr), nullptr);
  EXPECT_EQ(recorder_.reasons, (Lines{"moved 0", "moved 0", "move_pages 4"}));
  recorder_.reasons.clear();
  SimGpu::finish_all();
  device_->empty_cache();
  EXPECT_EQ(recorder_.reasons, (Lines{"released 0"}));
  EXPECT_NE(wall, kNull);
}

TEST_F(ObserverTest, ContextsAreInTheViews) {
  const DevicePtr ptr = allocate_at(1024, here("a"));
  const SegmentView segment = device_->report().segments(nullptr).front();
  EXPECT_EQ(segment.context, nullptr);  // the request did not fill it
  EXPECT_EQ(*static_cast<std::string*>(segment.blocks.front().context.get()), "a");
  EXPECT_EQ(segment.blocks.back().context, nullptr);
  free_at(ptr, nullptr);
  EXPECT_EQ(device_->report().segments(nullptr).front().blocks.front().context, nullptr);
}

class Tagger final : public MemoryObserver {
 public:
  void on_event(const EventFacts& event) noexcept override {
    if (event.what == MemoryEvent::kAllocate) {
      found.push_back(*event.tag);
      *event.tag = *event.tag != 0 ? *event.tag : next;
      live_bytes += event.block_bytes;
    } else if (event.what == MemoryEvent::kFreeRequested) {
      found.push_back(std::exchange(*event.tag, BlockTag{0}));
      live_bytes -= event.block_bytes;
    } else {
      all_others_have_none = all_others_have_none && (event.tag == nullptr || *event.tag == 0);
    }
  }

  BlockTag next = 7;       // of the next blocks without a tag
  std::vector<int> found;  // tags of allocated and freed blocks, before this changed them
  std::size_t live_bytes = 0;
  bool all_others_have_none = true;
};

TEST_F(ObserverTest, ATagStaysWithTheBlockUntilItIsFreed) {
  Tagger tagger;
  device_->set_observer(&tagger);
  const DevicePtr first = allocate_at(1024, nullptr);
  const DevicePtr second = allocate_at(512, nullptr);
  EXPECT_EQ(tagger.live_bytes, 1536U);
  EXPECT_EQ(device_->report().live_blocks(kDefaultPool).front().tag, 7);
  free_used_by(second, side_);
  free_at(first, nullptr);
  SimGpu::finish_all();
  device_->collect_pending();
  EXPECT_EQ(allocate_at(1024, nullptr), first);
  EXPECT_EQ(tagger.found, (std::vector<int>{0, 0, 7, 7, 0}));
  EXPECT_EQ(tagger.live_bytes, 1024U);
  EXPECT_TRUE(tagger.all_others_have_none);
}

TEST_F(ObserverTest, ACheckpointBringsTagsBack) {
  Tagger tagger;
  device_->set_observer(&tagger);
  const DevicePtr ptr = allocate_at(1024, nullptr);
  const std::vector<BlockView> live = device_->report().live_blocks(kDefaultPool);
  Heap& heap = heap_of(ptr);
  free_at(ptr, nullptr);
  ASSERT_TRUE(heap.can_restore(live));
  std::vector<BlockView> freed;
  heap.restore_live(live, &freed);
  EXPECT_EQ(tagger.found, (std::vector<int>{0, 7, 7}));
  EXPECT_EQ(tagger.live_bytes, 1024U);
  // Without an observer tags are not restored, because nothing would remove them.
  device_->set_observer(nullptr);
  heap.restore_live(live, &freed);
  EXPECT_EQ(device_->report().live_blocks(kDefaultPool).front().tag, 0);
}

TEST_F(ObserverTest, AHandleCountsForEachTagThatHasLiveBytesOnIt) {
  Tagger tagger;
  device_->set_observer(&tagger);
  const auto allocate = [&](BlockTag tag, std::size_t size) {
    tagger.next = tag;
    return allocate_at(size, nullptr);
  };
  const auto reserved = [&] { return device_->report().reserved_by_tag(); };
  // Blocks of one page and of several, and some that straddle pages.
  const DevicePtr small = allocate(7, 1024);
  allocate(7, 2048);
  allocate(8, 512);
  EXPECT_EQ(reserved(), (TagBytes{{7, kPageBytes}, {8, kPageBytes}}));
  const DevicePtr large = allocate(8, 4 * kPageBytes);
  EXPECT_EQ(reserved(), (TagBytes{{7, kPageBytes}, {8, 5 * kPageBytes}}));
  free_at(large, nullptr);
  allocate(9, 3 * kPageBytes / 2);
  allocate(10, 3 * kPageBytes / 2);
  // The page, or the handle, that both touch counts for both.
  const TagBytes both = reserved();
  EXPECT_EQ(both.at(8), kPageBytes);
  EXPECT_EQ(both.at(9) + both.at(10), 4 * kPageBytes);
  EXPECT_LE(both.at(9), device_->report().held_bytes());
  // A block without a tag counts for none, and neither does a freed one.
  allocate(0, 1024);
  free_at(small, nullptr);
  EXPECT_EQ(reserved(), both);
  device_->set_observer(nullptr);
}

TEST_F(ObserverTest, WithoutAnObserverNoContextIsKept) {
  device_->set_observer(nullptr);
  allocate_at(1024, here("a"));
  EXPECT_EQ(device_->report().segments(nullptr).front().blocks.front().context, nullptr);
  EXPECT_TRUE(recorder_.lines.empty());
}

}  // namespace observer_test
}  // namespace ferro
