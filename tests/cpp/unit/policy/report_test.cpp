#include "ferro/core/policy/report.h"

#include "ferro/base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

namespace ferro {
namespace report_test {

// A full card of 80 GiB: memory that is not live, waiting or free has no other owner.
OutOfMemoryFacts full_card() {
  OutOfMemoryFacts facts;
  facts.request = 4 * kGiB;
  facts.capacity = 80 * kGiB;
  facts.device_free = kGiB;
  facts.held = 79 * kGiB;
  facts.live = 79 * kGiB;
  return facts;
}

struct VerdictCase {
  std::string name;
  Verdict verdict;
  std::string word;
  OutOfMemoryFacts facts;
};

template <typename Change>
VerdictCase a_case(std::string name, Verdict verdict, std::string word, Change change) {
  OutOfMemoryFacts facts = full_card();
  change(facts);
  return {std::move(name), verdict, std::move(word), facts};
}

void make_free(OutOfMemoryFacts& facts, std::size_t bytes) {
  facts.free_default = bytes;
  facts.live -= bytes;
}

class VerdictTest : public ::testing::TestWithParam<VerdictCase> {};

TEST_P(VerdictTest, IsReachedAndExplained) {
  const VerdictCase& given = GetParam();
  EXPECT_EQ(diagnose(given.facts), given.verdict);
  EXPECT_NE(explain(given.facts).find("verdict = " + given.word), std::string::npos)
      << explain(given.facts);
  EXPECT_TRUE(given.word.starts_with(name_of(given.verdict)));
}

INSTANTIATE_TEST_SUITE_P(
    Table, VerdictTest,
    ::testing::Values(a_case("AllIsLive", Verdict::kCapacity, "CAPACITY", [](auto&) {}),
                      a_case("ThePoolsOwnAllocator", Verdict::kPoolAllocator,
                             "POOL ALLOCATOR: the allocator of the pool (0, 3) returned",
                             [](auto& facts) { facts.pool_with_allocator = "(0, 3)"; }),
                      a_case("FreeBytesCoverTheDeficit", Verdict::kFragmentation, "FRAGMENTATION",
                             [](auto& facts) { make_free(facts, 3 * kGiB); }),
                      a_case("FreeBytesMissTheDeficitBy512", Verdict::kCapacity, "CAPACITY",
                             [](auto& facts) { make_free(facts, 3 * kGiB - 512); }),
                      a_case("LeftToOthers", Verdict::kHeadroom, "HEADROOM: of the 6.00 GiB",
                             [](auto& facts) {
                               facts.held = facts.live = 74 * kGiB;
                               facts.device_free = 6 * kGiB;
                               facts.headroom = 3 * kGiB;
                             }),
                      a_case("AllThatIsFreeIsLeftToOthers", Verdict::kCapacity, "CAPACITY",
                             [](auto& facts) { facts.headroom = kGiB; }),
                      a_case("TheLimitIsReachedBeforeTheHeadroom", Verdict::kLimit, "LIMIT",
                             [](auto& facts) {
                               facts.held = facts.live = 70 * kGiB;
                               facts.limit = 72 * kGiB;
                               facts.device_free = 10 * kGiB;
                               facts.headroom = 3 * kGiB;
                             }),
                      a_case("WithWhatWaits", Verdict::kWaiting, "WAITING",
                             [](auto& facts) {
                               make_free(facts, kGiB);
                               facts.pending = 2 * kGiB;
                               facts.live -= facts.pending;
                             }),
                      a_case("WithPrivatePools", Verdict::kPrivatePools, "PRIVATE POOLS",
                             [](auto& facts) {
                               make_free(facts, kGiB);
                               facts.free_private = 2 * kGiB;
                               facts.live -= facts.free_private;
                             }),
                      a_case("OnlyTheLimit", Verdict::kLimit, "LIMIT",
                             [](auto& facts) {
                               facts.limit = 40 * kGiB;
                               facts.held = facts.live = 40 * kGiB;
                               facts.device_free = 40 * kGiB;
                             }),
                      a_case("TheLimitAndTheDevice", Verdict::kCapacity, "CAPACITY",
                             [](auto& facts) {
                               facts.limit = 79 * kGiB;
                               facts.device_free = kGiB;
                             }),
                      a_case("AnotherProcess", Verdict::kOtherMemory, "OTHER MEMORY",
                             [](auto& facts) {
                               facts.held = facts.live = 40 * kGiB;
                               facts.device_free = kGiB;
                             }),
                      a_case("TheContextAloneIsNotAnotherProcess", Verdict::kCapacity, "CAPACITY",
                             [](auto& facts) {
                               facts.device_free = 0;
                               facts.request = 512 * kMiB;
                             }),
                      a_case("IdlePagesCountAsRoom", Verdict::kFragmentation, "FRAGMENTATION",
                             [](auto& facts) {
                               // A failed attempt left 3 GiB that are held, but neither live nor
                               // free in a heap.
                               facts.device_free = 0;
                               facts.held = 80 * kGiB;
                               facts.live = 76 * kGiB;
                               facts.free_default = kGiB;
                             })),
    [](const auto& given) { return given.param.name; });

TEST(Explain, NamesTheNumbersItRestsOn) {
  OutOfMemoryFacts facts = full_card();
  make_free(facts, 3 * kGiB);
  facts.live_private = 5 * kGiB;
  facts.pending = 512 * kMiB;
  const std::string text = explain(facts);
  for (const char* part :
       {"Short of 3.00 GiB.", "Live 76.00 GiB", "private pools 5.00 GiB",
        "waiting for streams 0.50 GiB", "cached 3.00 GiB", "not PyTorch's 0.00 GiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

// The verdict says whether the cache could be used elsewhere.
TEST(Explain, CacheIsNotCalledStranded) {
  OutOfMemoryFacts facts = full_card();
  make_free(facts, kGiB);
  EXPECT_EQ(diagnose(facts), Verdict::kCapacity);
  EXPECT_EQ(explain(facts).find("stranded"), std::string::npos) << explain(facts);
}

TEST(Explain, SaysWhatPartOfTheCacheLiesBesideLiveBytes) {
  OutOfMemoryFacts facts = full_card();
  make_free(facts, 3 * kGiB);
  facts.stranded = {{1, kGiB / 4}, {16, kGiB}};
  const std::string text = explain(facts);
  EXPECT_NE(
      text.find(" Of the cache 1.25 GiB lie beside live bytes: 0.25 GiB on handles of 1 page, "
                "1.00 GiB on handles of 16 pages."),
      std::string::npos)
      << text;
}

TEST(Explain, SaysWhatSleeps) {
  OutOfMemoryFacts facts = full_card();
  EXPECT_EQ(explain(facts).find("sleep"), std::string::npos) << explain(facts);
  facts.asleep = 3 * kGiB;
  facts.saved = 2 * kGiB;
  EXPECT_NE(explain(facts).find(" Asleep 3.00 GiB, which wake() will take again, with 2.00 GiB of "
                                "contents on the host."),
            std::string::npos)
      << explain(facts);
}

TEST(Explain, AllSizesAreInTheUnitOfTheRequest) {
  OutOfMemoryFacts facts = full_card();
  make_free(facts, 3 * kMiB);
  facts.previous_held = kMiB;
  facts.streams = {{StreamId{}, 70 * kGiB, 69 * kGiB}, {StreamId{0x50}, 4 * kMiB, kMiB}};
  EXPECT_EQ(explain(facts).find("MiB"), std::string::npos) << explain(facts);
  facts.request = kGiB - 512;
  EXPECT_EQ(explain(facts).find("GiB"), std::string::npos) << explain(facts);
}

TEST(Explain, NamesTheLargestStreams) {
  OutOfMemoryFacts facts = full_card();
  facts.streams = {{StreamId{}, 70 * kGiB, 69 * kGiB}};
  EXPECT_EQ(explain(facts).find("stream"), explain(facts).find("streams 0.00 GiB"));
  for (std::uint64_t stream = 1; stream < 6; ++stream) {
    facts.streams.push_back({StreamId{0x50 + stream}, kGiB, kGiB / 2});
  }
  const std::string text = explain(facts);
  EXPECT_NE(text.find(" Of the default pool the default stream holds 70.00 GiB (69.00 GiB live), "
                      "stream 0x51 holds 1.00 GiB (0.50 GiB live), "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("stream 0x53"), std::string::npos) << text;
  EXPECT_EQ(text.find("stream 0x54"), std::string::npos) << text;
  EXPECT_NE(text.find("and 2 more streams the rest."), std::string::npos) << text;
}

// Each allocator has half of the card; the other one caches `cached` bytes.
OutOfMemoryFacts beside_another(std::size_t cached) {
  OutOfMemoryFacts facts = full_card();
  facts.held = facts.live = 39 * kGiB;
  facts.previous_held = 40 * kGiB;
  facts.previous_live = 40 * kGiB - cached;
  return facts;
}

// Of the memory held, only what is idle is room for the request.
TEST(ShortfallTest, MemoryInAnyUseButIdleIsMissing) {
  const std::pair<const char*, std::size_t OutOfMemoryFacts::*> uses[] = {
      {"live", &OutOfMemoryFacts::live},
      {"pending", &OutOfMemoryFacts::pending},
      {"free in the default pool", &OutOfMemoryFacts::free_default},
      {"free in private pools", &OutOfMemoryFacts::free_private},
      {"scratch of graphs", &OutOfMemoryFacts::scratch},
  };
  for (const auto& [name, use] : uses) {
    OutOfMemoryFacts facts = full_card();
    facts.live -= 2 * kGiB;
    EXPECT_EQ(shortfall(facts), kGiB) << "idle";
    facts.*use += 2 * kGiB;
    EXPECT_EQ(shortfall(facts), 3 * kGiB) << name;
  }
}

TEST(PreviousAllocatorTest, ItsLiveMemoryIsTheProgramsOwn) {
  const OutOfMemoryFacts facts = beside_another(0);
  EXPECT_EQ(diagnose(facts), Verdict::kCapacity);
  EXPECT_EQ(other_memory(facts), 0U);
  EXPECT_EQ(shortfall(facts), 3 * kGiB);
}

TEST(PreviousAllocatorTest, ItsCacheCouldHaveServed) {
  const OutOfMemoryFacts facts = beside_another(20 * kGiB);
  EXPECT_EQ(diagnose(facts), Verdict::kFragmentation);
  EXPECT_NE(explain(facts).find("20.00 GiB in the allocator before ferro_alloc"), std::string::npos)
      << explain(facts);
  EXPECT_NE(advice(facts).find("install ferro_alloc before"), std::string::npos) << advice(facts);
}

TEST(PreviousAllocatorTest, TheLimitIsOnBoth) {
  OutOfMemoryFacts facts = beside_another(0);
  facts.capacity = 160 * kGiB;
  facts.device_free = 81 * kGiB;
  facts.limit = 80 * kGiB;
  EXPECT_EQ(shortfall(facts), 3 * kGiB);
  EXPECT_EQ(diagnose(facts), Verdict::kLimit);
  EXPECT_NE(advice(facts).find("memory_limit_mb"), std::string::npos) << advice(facts);
}

// What is free on the device just suffices, or one byte is missing.
TEST(LimitTest, IsTheCauseFromTheByteOnThatTheDeviceHasEnough) {
  OutOfMemoryFacts facts = full_card();
  facts.limit = facts.live;
  facts.headroom = kGiB;
  facts.device_free = facts.request + facts.headroom;
  EXPECT_EQ(diagnose(facts), Verdict::kLimit);
  --facts.device_free;
  EXPECT_EQ(diagnose(facts), Verdict::kHeadroom);
  facts.device_free = facts.request;
  EXPECT_EQ(diagnose(facts), Verdict::kHeadroom);
  --facts.device_free;
  EXPECT_EQ(diagnose(facts), Verdict::kCapacity);
}

}  // namespace report_test
}  // namespace ferro
