#include "sim/settings/visible_cards.h"

#include "sim/settings/device_attributes.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

namespace ferro::sim {
namespace {

constexpr int kNoCard = -1;

// Parses as strtol does, so "1st" is 1. The number may exceed those of the cards.
int number_of(const std::string& entry) {
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  return end == entry.c_str() || number < 0 ? kNoCard
                                            : static_cast<int>(std::min(number, 1L << 30));
}

int card_with_uuid(std::string_view beginning, int cards) {
  int found = kNoCard;
  for (int card = 0; card < cards; ++card) {
    if (device_uuid_text(card).starts_with(beginning)) {
      if (found != kNoCard) {
        return kNoCard;
      }
      found = card;
    }
  }
  return found;
}

std::vector<std::string> entries_of(std::string_view list) {
  std::vector<std::string> entries;
  while (true) {
    const std::size_t comma = list.find(',');
    entries.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) {
      return entries;
    }
    list.remove_prefix(comma + 1);
  }
}

bool names_uuid(const std::string& entry) { return entry.starts_with("GPU-"); }

}  // namespace

std::vector<int> visible_cards(const char* list, int cards) {
  std::vector<int> visible;
  if (list == nullptr) {
    visible.resize(static_cast<std::size_t>(cards));
    std::iota(visible.begin(), visible.end(), 0);
    return visible;
  }
  const std::vector<std::string> entries = entries_of(list);
  const bool by_uuid = names_uuid(entries.front());
  for (const std::string& entry : entries) {
    const int card = by_uuid != names_uuid(entry) ? kNoCard
                     : by_uuid                    ? card_with_uuid(entry, cards)
                                                  : number_of(entry);
    if (card == kNoCard) {
      break;
    }
    if (std::ranges::find(visible, card) != visible.end()) {
      return {};
    }
    visible.push_back(card);
  }
  // Too large numbers end the list only here, because duplicates after them still count.
  visible.erase(std::ranges::find_if(visible, [&](int card) { return card >= cards; }),
                visible.end());
  return visible;
}

}  // namespace ferro::sim
