#include "ferro/adapter/allocator/known_streams.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace ferro {
namespace known_streams_test {

// An id as c10/cuda/CUDAStream.cpp makes it for its pools.
std::int64_t pool_stream(int index, int priority) { return index << 5 | (1 + priority) << 1 | 1; }

TEST(KnownStreams, AllStreamsOfAPriorityHaveASlotOfTheirOwn) {
  for (const int device : {0, 1, 7}) {
    for (const int priority : {0, 1, 2, 3}) {
      std::set<std::size_t> slots;
      for (int i = 0; i < 32; ++i) {
        slots.insert(
            KnownStreams::index_of(KnownStreams::key_of(pool_stream(i, priority), device)));
      }
      EXPECT_EQ(slots.size(), 32U);
    }
  }
}

TEST(KnownStreams, DevicesAndIdsHaveKeysOfTheirOwn) {
  std::set<std::uint64_t> keys;
  for (int device = 0; device < 8; ++device) {
    for (int i = 0; i < 32; ++i) {
      keys.insert(KnownStreams::key_of(pool_stream(i, 0), device));
    }
    keys.insert(KnownStreams::key_of(0, device));
    keys.insert(KnownStreams::key_of(0x7f12'3456'7890, device));  // of a program: its handle
  }
  EXPECT_EQ(keys.size(), 8U * 34);
}

TEST(KnownStreams, TheDefaultStreamIsKnown) {
  KnownStreams known;
  EXPECT_EQ(known.slot_of(KnownStreams::key_of(0, 0)).handle, StreamId{0});
}

TEST(KnownStreams, ASlotKeepsWhatIsWrittenToIt) {
  KnownStreams known;
  const std::uint64_t key = KnownStreams::key_of(pool_stream(5, 0), 1);
  EXPECT_NE(known.slot_of(key).key, key);
  known.slot_of(key) = {key, StreamId{42}};
  EXPECT_EQ(known.slot_of(key).key, key);
  EXPECT_EQ(known.slot_of(key).handle, StreamId{42});
}

}  // namespace known_streams_test
}  // namespace ferro
