// The cards that CUDA_VISIBLE_DEVICES shows, of four.
#include "sim/settings/device_attributes.h"
#include "sim/settings/visible_cards.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace ferro::sim {
namespace sim_visible_cards_test {

using Cards = std::vector<int>;

Cards visible(const std::string& list) { return visible_cards(list.c_str(), 4); }

TEST(VisibleCardsTest, WithoutTheVariableAllAre) {
  EXPECT_EQ(visible_cards(nullptr, 4), Cards({0, 1, 2, 3}));
  EXPECT_EQ(visible_cards(nullptr, 1), Cards({0}));
}

TEST(VisibleCardsTest, NumbersGiveTheOrder) {
  EXPECT_EQ(visible("0"), Cards({0}));
  EXPECT_EQ(visible("3,1"), Cards({3, 1}));
  EXPECT_EQ(visible(" 2 , 0"), Cards({2, 0}));
  EXPECT_EQ(visible("1st,2nd"), Cards({1, 2}));
}

TEST(VisibleCardsTest, NothingAndNegativeNumbersHideAll) {
  EXPECT_EQ(visible(""), Cards());
  EXPECT_EQ(visible("-1"), Cards());
  EXPECT_EQ(visible("none"), Cards());
  EXPECT_EQ(visible(",0"), Cards());
}

TEST(VisibleCardsTest, AnInvalidEntryEndsTheList) {
  EXPECT_EQ(visible("0,-1,1"), Cards({0}));
  EXPECT_EQ(visible("2,4,1"), Cards({2}));
  EXPECT_EQ(visible("2,99999999999999999999,1"), Cards({2}));
  EXPECT_EQ(visible("1,,2"), Cards({1}));
  EXPECT_EQ(visible("1,x,2"), Cards({1}));
  EXPECT_EQ(visible("4"), Cards());
}

TEST(VisibleCardsTest, ACardThatIsNamedTwiceHidesAll) {
  EXPECT_EQ(visible("1,1"), Cards());
  EXPECT_EQ(visible("0,1,0"), Cards());
  EXPECT_EQ(visible("0,-1,0"), Cards({0}));
  EXPECT_EQ(visible("0,7,0"), Cards());
}

TEST(VisibleCardsTest, UuidsAreKnownByTheirBeginnings) {
  const std::string first = device_uuid_text(0);
  const std::string last = device_uuid_text(3);
  ASSERT_EQ(first.size(), 40U);
  EXPECT_EQ(visible(last + "," + first), Cards({3, 0}));
  EXPECT_EQ(visible(first.substr(0, 12)), Cards());  // several cards begin so
  EXPECT_EQ(visible_cards("GPU-", 1), Cards({0}));
  EXPECT_EQ(visible_cards(first.substr(0, 12).c_str(), 1), Cards({0}));
  EXPECT_EQ(visible(last + ",GPU-0," + first), Cards({3}));
  EXPECT_EQ(visible(last + "," + last), Cards());
  EXPECT_EQ(visible(last + "," + last + "0"), Cards({3}));
  EXPECT_EQ(visible("MIG-" + first), Cards());
}

TEST(VisibleCardsTest, NumbersAndUuidsAreNotMixed) {
  EXPECT_EQ(visible("1," + device_uuid_text(2)), Cards({1}));
  EXPECT_EQ(visible(device_uuid_text(2) + ",1"), Cards({2}));
}

TEST(VisibleCardsTest, CardsHaveUuidsOfTheirOwn) {
  std::set<std::string> seen;
  for (int card = 0; card < 16; ++card) {
    seen.insert(device_uuid_text(card));
  }
  EXPECT_EQ(seen.size(), 16U);
}

}  // namespace sim_visible_cards_test
}  // namespace ferro::sim
