#include "sim/libraries/cuda/derived_workspaces.h"

#include <atomic>

namespace {

std::atomic<std::uint64_t> derived = 0;

}  // namespace

void ferro_sim_note_derived_workspace() { ++derived; }

std::uint64_t ferro_sim_derived_workspaces() { return derived; }
