// The driver contract as a program: on the real driver, or with --simulated on the simulated one.
// Prints one line per case; the exit status is 0 if no case failed.
#include "contract/all_cases.h"
#include "sim/control.h"
#include "sim/driver_api.h"
#include "sim/machine/machine.h"

#include <cstdio>
#include <string_view>

namespace {

using ferro::contract::Env;

struct Tally {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
};

void run_case(const ferro::contract::Case& the_case, Env& env, Tally& tally) {
  try {
    the_case.run(env);
    ++tally.passed;
    std::printf("ok      %s\n", the_case.name);
  } catch (const ferro::contract::Skipped& reason) {
    ++tally.skipped;
    std::printf("skipped %s: %s\n", the_case.name, reason.what());
  } catch (const ferro::contract::Failure& failure) {
    ++tally.failed;
    std::printf("FAILED  %s: %s\n", the_case.name, failure.what());
  }
  std::fflush(stdout);
}

int close(const Tally& tally) {
  std::printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
  return tally.failed == 0 ? 0 : 1;
}

int run_simulated() {
  Tally tally;
  for (const auto& the_case : ferro::contract::all_cases()) {
    ferro::sim::MachineConfig config;
    config.devices = 2;
    config.memory_bytes = 256 * ferro::kMiB;
    config.mode = ferro::sim::TimeMode::kAdversarial;
    ferro::sim::Machine::start(config);
    Env env = ferro::contract::open_env(ferro::sim::sim_cuda_api(), true, false);
    env.waiting_threads = ferro_sim_waiting_threads;
    run_case(the_case, env, tally);
  }
  ferro::sim::Machine::stop();
  return close(tally);
}

int run_real() {
  const ferro::LoadedCudaApi& loaded = ferro::load_cuda_api();
  if (loaded.api == nullptr) {
    std::fprintf(stderr, "%s\n", loaded.why.c_str());
    return 2;
  }
  Tally tally;
  Env env = ferro::contract::open_env(*loaded.api, false, false);
  for (const auto& the_case : ferro::contract::all_cases()) {
    run_case(the_case, env, tally);
  }
  return close(tally);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 && std::string_view(argv[1]) == "--simulated") {
      return run_simulated();
    }
    if (argc != 1) {
      std::fprintf(stderr, "usage: contract_runner [--simulated]\n");
      return 2;
    }
    return run_real();
  } catch (const ferro::contract::Failure& failure) {
    std::fprintf(stderr, "the driver cannot be used: %s\n", failure.what());
    return 2;
  }
}
