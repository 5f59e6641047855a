#include "sim/libraries/cuda/derived_workspaces.h"

#include <atomic>

namespace {

std::atomic<std::uint64_t> derived = 0;

}  // namespace

void ferro_sim_note_derived_workspace(std::uint64_t bytes) {
  constexpr std::uint64_t kLarge = 1 << 20;
  if (bytes >= kLarge) {
    ++derived;
  }
}

std::uint64_t ferro_sim_derived_workspaces() { return derived; }
