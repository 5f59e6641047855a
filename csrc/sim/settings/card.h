// The figures of a card that programs ask for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ferro::sim {

// What a card can do, by its maker's figures. For clock time.
struct CardSpeed {
  // Gigabytes a second, which are bytes a nanosecond: device memory (reads and writes together),
  // the link to the host and the link to another card, each in one direction.
  double memory;
  double host_link;
  double peer_link;
  // Matrix products, in teraflops without sparsity: elements of 16 bits, 32 bits (at full
  // precision) and 64 bits.
  double half;
  double single;
  double twice;
};

// The figures of a card that programs ask for. Memory is what the driver reports as total.
struct Card {
  std::string key;
  std::string name;
  std::size_t memory_bytes;
  // What the driver keeps for a context, as seen by cuMemGetInfo.
  std::size_t context_bytes;
  int compute_major;
  int compute_minor;
  int multiprocessors;
  int threads_per_multiprocessor;
  int shared_bytes_per_multiprocessor;
  int l2_bytes;
  int memory_bus_bits;
  CardSpeed speed;
};

// Those that need no program to describe them: "h100" and "h200". Null for another key. The table of
// cards that users choose from is `ferro_alloc/sim/cards.py`, which gives their figures.
const Card* find_card(std::string_view key);

// A card by its figures, parted by colons, in the order of the members above: key, name (with `_` for
// a blank), and numbers. Nothing where one is missing, too much or no number.
std::optional<Card> parse_card(std::string_view text);

}  // namespace ferro::sim
