// The cards that a process sees, by CUDA_VISIBLE_DEVICES. A pure function.
#pragma once

#include <vector>

namespace ferro::sim {

// The visible ones of `cards` cards, in the order of the process's devices. `list` is the value of
// the variable; null means all cards. All entries are numbers of cards or prefixes of UUIDs,
// whichever the first entry is. An entry that matches no card, or several, ends the list. If a card
// is listed twice, none is visible.
std::vector<int> visible_cards(const char* list, int cards);

}  // namespace ferro::sim
