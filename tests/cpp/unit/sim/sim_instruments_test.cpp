// The simulated GPU: settings, counters, planned failures, the control functions.
#include "contract/all_cases.h"
#include "sim/control.h"
#include "sim/driver_api.h"
#include "sim/machine/machine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

namespace ferro::sim {
namespace sim_instruments_test {

using contract::Env;

class SimInstruments : public ::testing::Test {
 protected:
  SimInstruments() {
    EXPECT_EQ(ferro_sim_start("memory=64MiB"), 0);
    env_.emplace(contract::open_env(sim_cuda_api(), true, true));
    ferro_sim_reset_counters();
  }
  ~SimInstruments() override { ferro_sim_stop(); }

  CUresult create(std::size_t bytes, CUmemGenericAllocationHandle* handle) {
    const CUmemAllocationProp properties = contract::page_properties(*env_);
    return env_->api.mem_create(handle, bytes, &properties, 0);
  }

  std::optional<Env> env_;
};

TEST(SimConfig, ReadsSettings) {
  MachineConfig config;
  EXPECT_EQ(parse_config("devices=2, memory=1.5GiB;mode=adversarial seed=9 turn=0.5", config), "");
  EXPECT_EQ(config.devices, 2);
  EXPECT_EQ(config.total_bytes(), 1536 * kMiB);
  EXPECT_EQ(config.mode, TimeMode::kAdversarial);
  EXPECT_EQ(config.seed, 9U);
  EXPECT_EQ(config.address_space_bytes, std::size_t{1} << 47);
  EXPECT_EQ(parse_config("address_space=0.5TiB", config), "");
  EXPECT_EQ(config.address_space_bytes, 512 * kGiB);
  EXPECT_EQ(parse_config("card=h200", config), "");
  EXPECT_EQ(config.card->name, "NVIDIA H200");
  EXPECT_EQ(parse_config("mode=clock program=12.5", config), "");
  EXPECT_EQ(config.mode, TimeMode::kClock);
  EXPECT_DOUBLE_EQ(config.program_microseconds, 12.5);
  EXPECT_DOUBLE_EQ(config.program_factor, 0);
  EXPECT_EQ(parse_config("program=x1.5", config), "");
  EXPECT_DOUBLE_EQ(config.program_microseconds, 0);
  EXPECT_DOUBLE_EQ(config.program_factor, 1.5);
  EXPECT_EQ(parse_config("program=7", config), "");
  EXPECT_DOUBLE_EQ(config.program_factor, 0);
}

TEST(SimConfig, ReadsTheEnvironment) {
  setenv("FERRO_SIM_ADDRESS_SPACE", "3GiB", 1);
  setenv("FERRO_SIM_DEVICES", "4", 1);
  const MachineConfig config = config_from_environment();
  unsetenv("FERRO_SIM_ADDRESS_SPACE");
  unsetenv("FERRO_SIM_DEVICES");
  EXPECT_EQ(config.address_space_bytes, 3 * kGiB);
  EXPECT_EQ(config.devices, 4);
}

TEST(SimConfig, MistakeIsNamedAndChangesNothing) {
  MachineConfig config;
  EXPECT_EQ(parse_config("devices=3,mode=fast", config),
            "the value of \"mode=fast\" is not acceptable");
  EXPECT_NE(parse_config("card=none", config).find("\"none\""), std::string::npos);
  EXPECT_EQ(config.devices, 1);
  EXPECT_EQ(parse_config("speed=1", config), "there is no setting \"speed\"");
  EXPECT_NE(parse_config("turn=0", config), "");
  for (const char* wrong : {"program=-1", "program=x0", "program=x", "program=x-1"}) {
    EXPECT_NE(parse_config(wrong, config), "") << wrong;
  }
  EXPECT_NE(parse_config("memory=12x", config), "");
  EXPECT_NE(parse_config("address_space=0", config), "");
}

TEST_F(SimInstruments, CountsCallsAndTheirCost) {
  const Env& env = *env_;
  CUdeviceptr base = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&base, 4 * kGranularity, 0, 0, 0));
  for (std::size_t i = 0; i < 4; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    CONTRACT_OK(create(kGranularity, &handle));
    CONTRACT_OK(env.api.mem_map(base + i * kGranularity, kGranularity, 0, handle, 0));
    CONTRACT_OK(env.api.mem_release(handle));
  }
  CONTRACT_OK(contract::set_access(env, base, 4 * kGranularity));
  CONTRACT_OK(env.api.mem_unmap(base, 4 * kGranularity));
  EXPECT_NE(env.api.mem_map(base, kGranularity, 0, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_calls("cuMemMap"), 5U);
  EXPECT_EQ(ferro_sim_calls("cuMemSetAccess"), 1U);
  {
    const std::lock_guard guard(Machine::lock());
    const Counters& counters = Machine::current().counters();
    EXPECT_EQ(counters.of("cuMemMap").failures, 1U);
    EXPECT_EQ(counters.of("cuMemCreate").bytes, 4 * kGranularity);
    // Four handles each.
    EXPECT_DOUBLE_EQ(counters.of("cuMemSetAccess").microseconds, 80);
    EXPECT_DOUBLE_EQ(counters.of("cuMemUnmap").microseconds, 56);
    EXPECT_NEAR(counters.of("cuMemRelease").microseconds, 4 * (9 + 2 * 0.267), 1e-9);
  }
  char text[4096];
  EXPECT_LT(ferro_sim_counters(text, sizeof(text)), sizeof(text));
  EXPECT_NE(std::string(text).find(R"("cuMemUnmap": {"calls": 1, "failures": 0)"),
            std::string::npos);
  ferro_sim_reset_counters();
  EXPECT_EQ(ferro_sim_calls("cuMemMap"), 0U);
}

TEST_F(SimInstruments, TracesCalls) {
  const Env& env = *env_;
  ferro_sim_set_trace(1);
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_OK(create(kGranularity, &handle));
  CONTRACT_OK(env.api.mem_release(handle));
  ferro_sim_set_trace(1);
  EXPECT_NE(create(1, &handle), CUDA_SUCCESS);
  char text[256];
  ferro_sim_trace(text, sizeof(text));
  EXPECT_STREQ(text, "cuMemCreate 1 failed\n");
}

TEST_F(SimInstruments, FailsTheGivenCall) {
  EXPECT_EQ(ferro_sim_add_fault("cuMemCreate", "call", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(create(kGranularity, &handle), CUDA_SUCCESS);
  EXPECT_EQ(create(kGranularity, &handle), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(create(kGranularity, &handle), CUDA_SUCCESS);
  // The failed call had no effect.
  EXPECT_EQ(ferro_sim_allocated_bytes(0), 2 * kGranularity);
}

TEST_F(SimInstruments, FailsEveryCallAfterTheGiven) {
  EXPECT_EQ(ferro_sim_add_fault("cuMemAlloc", "after", 1, CUDA_ERROR_UNKNOWN), 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(env_->api.mem_alloc(&at, 100), CUDA_SUCCESS);
  EXPECT_EQ(env_->api.mem_alloc(&at, 100), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(env_->api.mem_alloc(&at, 100), CUDA_ERROR_UNKNOWN);
  ferro_sim_clear_faults();
  EXPECT_EQ(env_->api.mem_alloc(&at, 100), CUDA_SUCCESS);
}

TEST_F(SimInstruments, FailsCallsBySize) {
  EXPECT_EQ(ferro_sim_add_fault("cuMemCreate", "bytes", 4 * kMiB, CUDA_ERROR_OUT_OF_MEMORY), 0);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(create(2 * kMiB, &handle), CUDA_SUCCESS);
  EXPECT_EQ(create(4 * kMiB, &handle), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(create(2 * kMiB, &handle), CUDA_SUCCESS);
}

TEST_F(SimInstruments, RefusesAFaultItCannotPlan) {
  EXPECT_EQ(ferro_sim_add_fault("cuMemCreate", "sometimes", 1, CUDA_ERROR_UNKNOWN), -1);
  EXPECT_STREQ(ferro_sim_last_error(),
               "a fault is due at \"call\", \"after\" or \"bytes\", not \"sometimes\"");
  EXPECT_EQ(ferro_sim_add_fault("cuMemCreate", "call", 1, CUDA_SUCCESS), -1);
  EXPECT_EQ(ferro_sim_start("mode=fast"), -1);
}

TEST_F(SimInstruments, PeeksAndPokesMappedMemoryOnly) {
  const Env& env = *env_;
  const contract::Memory memory(env, 2);
  const unsigned value[2] = {7, 8};
  const CUdeviceptr border = memory.at(1) - 4;
  EXPECT_EQ(ferro_sim_poke(border, value, sizeof(value)), 0);
  EXPECT_EQ(contract::read_word(env, memory.at(1)), 8U);
  unsigned seen[2] = {};
  EXPECT_EQ(ferro_sim_peek(border, seen, sizeof(seen)), 0);
  EXPECT_EQ(seen[0], 7U);
  EXPECT_EQ(ferro_sim_peek(memory.at(1) + kGranularity - 4, seen, 8), -1);
}

TEST_F(SimInstruments, ReportsWhatIsMapped) {
  const Env& env = *env_;
  const contract::Memory memory(env, 3);
  char text[4096];
  ASSERT_LT(ferro_sim_report(1, text, sizeof(text)), sizeof(text));
  const std::string report = text;
  EXPECT_NE(report.find("\"mappings\": 3"), std::string::npos);
  EXPECT_NE(report.find("\"allocated_bytes\": 6291456"), std::string::npos);
  EXPECT_NE(report.find("{\"address\": " + std::to_string(memory.at(2)) + ", \"bytes\": 2097152"),
            std::string::npos);
  // The length is that of the whole text, also when it does not fit.
  char little[8];
  EXPECT_EQ(ferro_sim_report(1, little, sizeof(little)), report.size());
  EXPECT_EQ(std::string(little), report.substr(0, 7));
}

TEST_F(SimInstruments, ARestartForgetsEverything) {
  const Env& env = *env_;
  CUdeviceptr at = 0;
  CONTRACT_OK(env.api.mem_alloc(&at, kMiB));
  EXPECT_EQ(ferro_sim_start("memory=32MiB,devices=2"), 0);
  EXPECT_EQ(ferro_sim_allocated_bytes(0), 0U);
  int count = 0;
  CONTRACT_OK(env.api.device_get_count(&count));
  EXPECT_EQ(count, 2);
  // The thread's context went with the old machine.
  EXPECT_EQ(env.api.mem_alloc(&at, kMiB), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(SimInstruments, ChildOfForkIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr at = 0;
    _exit(env_->api.mem_alloc(&at, 100) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CUdeviceptr at = 0;
  EXPECT_EQ(env_->api.mem_alloc(&at, 100), CUDA_SUCCESS);
}

TEST_F(SimInstruments, ChildOfForkBeforeTheDriverStartedHasTheSameCards) {
  ASSERT_EQ(ferro_sim_start("memory=32MiB,devices=3,sharing=new"), 0);
  const pid_t child = fork();
  if (child == 0) {
    const contract::Env fresh = contract::open_env(env_->api, true, true);
    CUdeviceptr at = 0;
    int count = 0;
    const bool right = fresh.api.device_get_count(&count) == CUDA_SUCCESS && count == 3 &&
                       fresh.api.mem_alloc(&at, 2 * kMiB) == CUDA_SUCCESS &&
                       contract::free_bytes(fresh) == 30 * kMiB;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const contract::Env fresh = contract::open_env(env_->api, true, true);
  EXPECT_EQ(contract::free_bytes(fresh), 32 * kMiB);
}

TEST_F(SimInstruments, ContextsTakeMemoryOfACard) {
  const Env& env = *env_;
  ASSERT_EQ(ferro_sim_start("card=h200"), 0);
  EXPECT_EQ(ferro_sim_allocated_bytes(0), 0U);
  const Env fresh = contract::open_env(env.api, true, true);
  EXPECT_EQ(ferro_sim_allocated_bytes(0), find_card("h200")->context_bytes);
  EXPECT_EQ(contract::free_bytes(fresh),
            find_card("h200")->memory_bytes - find_card("h200")->context_bytes);
}

}  // namespace sim_instruments_test
}  // namespace ferro::sim
