// Counts workspaces whose size was derived from similar ones, because the same one was not measured on
// a GPU. It lives in libcuda.so.1 and serves all libraries. Thread-safe.
#pragma once

#include <cstdint>

extern "C" {
// `bytes`: of the call's tensors, or of the workspace. Less than 1 MiB does not count.
void ferro_sim_note_derived_workspace(std::uint64_t bytes);
std::uint64_t ferro_sim_derived_workspaces();
}
