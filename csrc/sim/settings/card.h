// The figures of a card that programs ask for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ferro::sim {

// The speed of a card in clock time, by its maker's figures.
struct CardSpeed {
  // Gigabytes a second, which are bytes a nanosecond: device memory (reads and writes together),
  // the link to the host and the link to another card, each in one direction.
  double memory;
  double host_link;
  double peer_link;
  // Matrix products, in teraflops without sparsity: elements of 16 bits, 32 bits (at full
  // precision) and 64 bits.
  double fp16;
  double fp32;
  double fp64;
};

// The figures of a card that programs ask for. Memory is what the driver reports as total.
struct Card {
  std::string key;
  std::string name;
  std::size_t memory_bytes;
  // The memory that the driver takes for a context, as cuMemGetInfo shows it.
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

// The built-in cards "h100" and "h200"; null for another key. The table of cards that users choose
// from is `ferro_alloc/sim/cards.py`, which passes their figures.
const Card* find_card(std::string_view key);

// Parses the figures of a card, separated by colons, in the order of the members above: key, name
// (with `_` for a blank), and numbers. None if a figure is missing, extra or not a number.
std::optional<Card> parse_card(std::string_view text);

}  // namespace ferro::sim
