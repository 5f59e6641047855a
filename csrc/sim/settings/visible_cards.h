// The cards that a process sees, by CUDA_VISIBLE_DEVICES. Pure.
#pragma once

#include <vector>

namespace ferro::sim {

// The visible ones of `cards` cards, in the order of the process's devices. `list` is the value of
// the variable; null: all cards. Its entries are numbers of cards, or else beginnings of UUIDs, as
// its first entry is. An entry that names no card, or several, ends the list. If a card is named
// twice, none is visible.
std::vector<int> visible_cards(const char* list, int cards);

}  // namespace ferro::sim
