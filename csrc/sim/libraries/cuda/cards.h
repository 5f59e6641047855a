// The state of the cards for NVML, over all processes that share them. No call counts as a driver
// call. In libcuda.so.1. Thread-safe; also in a child of fork().
#pragma once

#include <cstddef>
#include <cstdint>

struct FerroSimCard {
  char name[96];
  char uuid[48];  // GPU-...
  int pci_bus;
  int compute_major;
  int compute_minor;
  int has_nvlink;
  std::uint64_t total_bytes;
  std::uint64_t used_bytes;
};

struct FerroSimHolder {
  int process;
  std::uint64_t bytes;
};

extern "C" {
int ferro_sim_card_count();
// `index` is below the count.
void ferro_sim_card(int index, FerroSimCard* out);
// Writes at most `size` processes that hold memory of the card; returns their number.
std::size_t ferro_sim_card_holders(int index, FerroSimHolder* out, std::size_t size);
}
