// Events for code of the program, which allocates and frees while it receives them.
#include "ferro/core/types/observer_slot.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ferro {
namespace delivery_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

using Lines = std::vector<std::string>;

// Queues events, as the adapter does for trace trackers. The delivery allocates `nested` bytes on
// the stream of each event and frees them.
class Tracker final : public MemoryObserver {
 public:
  explicit Tracker(DeviceMemory& device, AddressIndex& addresses)
      : device_(device), addresses_(addresses) {}

  void on_event(const EventFacts& event) noexcept override {
    queue_.push_back({event.what, event.size, event.stream});
  }
  bool has_undelivered() const noexcept override { return !queue_.empty(); }
  void deliver() noexcept override {
    while (!queue_.empty()) {
      const Event event = queue_.front();
      queue_.pop_front();
      heard_.push_back(name_of(event.what) + " " + std::to_string(event.size));
      if (nested != 0 && !std::exchange(calls_back_, true)) {
        call_back(event.stream);
        calls_back_ = false;
      }
    }
  }
  // Does the queue still hold a removal?
  bool has_undelivered_removal() const {
    for (const Event& event : queue_) {
      if (event.what == MemoryEvent::kUnmapped) {
        return true;
      }
    }
    return false;
  }
  Lines take() { return std::exchange(heard_, {}); }

  std::size_t nested = 0;
  int calls = 0;  // served ones

 private:
  struct Event {
    MemoryEvent what;
    std::size_t size;
    StreamId stream;
  };

  static std::string name_of(MemoryEvent what) {
    static constexpr const char* kNames[] = {"alloc", "free_requested", "free_completed", "mapped",
                                             "unmapped"};
    return kNames[static_cast<int>(what)];
  }
  void call_back(StreamId stream) {
    const DevicePtr ptr = device_.allocate(kDefaultPool, stream, bytes(nested)).ptr;
    if (ptr != kNull) {
      ++calls;
      Span& span = *addresses_.find(ptr);
      EXPECT_EQ(span.heap()->free(span, ptr).error, FreeError::kNone);
      // The calls of the adapter end with this.
      deliver();
    }
  }

  DeviceMemory& device_;
  AddressIndex& addresses_;
  std::deque<Event> queue_;
  Lines heard_;
  bool calls_back_ = false;
};

class DeliveryTest : public testing::DeviceFixture {
 protected:
  DeliveryTest() : DeviceFixture(64, SimGpu::kEager) {
    device_->set_observer(&tracker_);
    FaultyApi::set_watcher([this](const char* symbol) {
      const std::string_view call = symbol;
      if (call == "cuMemUnmap") {
        ++removals_;
        EXPECT_FALSE(tracker_.has_undelivered_removal()) << call;
      }
    });
  }
  ~DeliveryTest() override {
    FaultyApi::set_watcher(nullptr);
    device_->set_observer(nullptr);
  }

  // Allocates and delivers, as a call of the adapter does.
  DevicePtr take(std::size_t size) {
    const DevicePtr ptr = device_->allocate(kDefaultPool, stream_, bytes(size)).ptr;
    EXPECT_NE(ptr, kNull);
    tracker_.deliver();
    return ptr;
  }
  void give(DevicePtr ptr) {
    free(ptr);
    tracker_.deliver();
    device_->report().check_invariants();
  }

  Tracker tracker_{*device_, addresses_};
  int removals_ = 0;
};

TEST_F(DeliveryTest, AClimbDeliversBeforeItReturnsAndAHitLeavesThatToTheCaller) {
  const DevicePtr ptr = device_->allocate(kDefaultPool, stream_, bytes(1024)).ptr;
  EXPECT_EQ(tracker_.take(), (Lines{"mapped 2097152", "alloc 1024"}));
  free(ptr);
  EXPECT_TRUE(tracker_.has_undelivered());
  EXPECT_EQ(tracker_.take(), Lines{});
  tracker_.deliver();
  EXPECT_EQ(tracker_.take(), (Lines{"free_requested 1024", "free_completed 1024"}));
}

TEST_F(DeliveryTest, UnmapEventsAreDeliveredBeforeTheUnmap) {
  give(take(kPageBytes));
  tracker_.take();
  device_->empty_cache();
  EXPECT_EQ(tracker_.take(), (Lines{"unmapped 2097152"}));
  EXPECT_EQ(removals_, 1);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

// Each event of growing, moving, transferring and releasing pages has a climb within the climb.
TEST_F(DeliveryTest, ATrackerClimbsAtEachEvent) {
  for (const std::size_t nested : {std::size_t{512}, kPageBytes, 5 * kPageBytes}) {
    tracker_.nested = nested;
    tracker_.calls = 0;
    const DevicePtr first = take(2 * kPageBytes);
    const DevicePtr wall = take(kPageBytes);
    const DevicePtr last = take(2 * kPageBytes);
    give(first);
    give(last);
    const DevicePtr moved = take(7 * kPageBytes);
    EXPECT_GE(tracker_.calls, 6) << nested;  // one for each call above
    device_->empty_cache();
    device_->report().check_invariants();
    give(moved);
    give(wall);
    tracker_.nested = 0;
    device_->empty_cache();
    EXPECT_EQ(SimGpu::used_pages(), 0U);
  }
  EXPECT_GT(removals_, 0);
}

TEST_F(DeliveryTest, ATrackerClimbsWhenACacheIsEmptiedForAFullDevice) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(allocate(3 * kPageBytes, i % 2 == 0 ? stream_ : side_));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    give(blocks[i]);
  }
  int shortages = 0;
  on_shortage_ = [&] {
    ++shortages;
    return false;
  };
  tracker_.nested = 3 * kPageBytes;
  const DevicePtr large = take(30 * kPageBytes);
  // The tracker's requests call no callback within the climb.
  EXPECT_LE(shortages, 2);
  EXPECT_GT(tracker_.calls, 0);
  device_->report().check_invariants();
  tracker_.nested = 0;
  give(large);
}

}  // namespace delivery_test
}  // namespace ferro
