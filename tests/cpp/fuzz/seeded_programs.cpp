// Random programs on a device's memory and a naive model of it, by seed.
//
//   seeded_programs FIRST_SEED INSTRUCTIONS
//
// Runs programs of consecutive seeds until so many instructions are done, and prints their number.
// Each seed runs once with work that completes at explicit steps and once with work that completes
// in any order. Every other seed checks everything after each instruction. A failure prints its
// seed and the program as C++ for tests/cpp/unit/device_model_test.cpp, and ends the run.
#include "model/device_model.h"
#include "support/random_bytes.h"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace {

using namespace ferro::testing;

constexpr std::size_t kBytes = 3000;

std::uint64_t run_seed(unsigned seed) {
  const auto bytes = random_bytes(seed, kBytes);
  const Program program = decode(bytes.data(), bytes.size());
  const unsigned look_every = seed % 2 == 0 ? 1 : DeviceModel::kLookEvery;
  run_program(program, SimGpu::kManual, look_every);
  run_program(program, "mode=adversarial,turn=0.05,seed=" + std::to_string(seed), look_every);
  return 2 * program.instructions.size();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: %s FIRST_SEED INSTRUCTIONS\n", arguments[0]);
    return 2;
  }
  const auto first = static_cast<unsigned>(std::stoul(arguments[1]));
  const std::uint64_t wanted = std::stoull(arguments[2]);
  unsigned seed = first;
  std::uint64_t done = 0;
  try {
    for (; done < wanted; ++seed) {
      done += run_seed(seed);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seed %u: %s\n", seed, error.what());
    return 1;
  }
  std::printf("%llu instructions, seeds %u to %u, no finding\n",
              static_cast<unsigned long long>(done), first, seed - 1);
  return 0;
}
