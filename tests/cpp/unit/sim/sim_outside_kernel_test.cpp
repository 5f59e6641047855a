// What a kernel from outside of operators may have written becomes unknown.
#include "sim/control.h"
#include "support/sim_gpu.h"

#include <cuda.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ferro::sim {
namespace sim_outside_kernel_test {

using testing::SimGpu;

constexpr std::size_t kBytes = 4 * kMiB;
constexpr std::size_t kBlock = 4096;

std::uint64_t block_begin = 0;  // one block of an allocator
std::vector<std::string> names;
int prepared = 0;

constexpr ferro_sim_outside_observer kObserver = {
    [](std::uint64_t address, std::uint64_t* begin, std::size_t* bytes) {
      *begin = block_begin;
      *bytes = kBlock;
      return block_begin <= address && address < block_begin + kBlock ? 1 : 0;
    },
    [] { ++prepared; },
    [](const char* name) { names.emplace_back(name); },
    [](ferro_sim_certainty) {},
};

class OutsideKernels : public ::testing::Test {
 protected:
  OutsideKernels() {
    names.clear();
    prepared = 0;
    block_begin = 0;
    ferro_sim_observe_outside(&kObserver);
    for (CUdeviceptr& at : memory_) {
      SimGpu::expect(cuMemAlloc(&at, kBytes));
      SimGpu::expect(cuMemsetD8(at, 0, kBytes));
    }
  }
  ~OutsideKernels() override { ferro_sim_observe_outside(nullptr); }

  static CUfunction kernel(const char* text, const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    SimGpu::expect(cuModuleLoadData(&module, text));
    SimGpu::expect(cuModuleGetFunction(&function, module, name));
    return function;
  }
  static void launch(CUfunction function, void** arguments, void** extra = nullptr) {
    SimGpu::expect(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, extra));
  }
  // That of the least certain byte.
  static ferro_sim_certainty certainty(CUdeviceptr at, std::size_t bytes) {
    struct Question {
      CUdeviceptr at;
      std::size_t bytes;
      int answer;
    } question = {at, bytes, -1};
    ferro_sim_drain();
    ferro_sim_at_once(
        [](void* asked) {
          auto& q = *static_cast<Question*>(asked);
          q.answer = ferro_sim_least_certainty(q.at, q.bytes);
        },
        &question);
    EXPECT_GE(question.answer, 0);
    return static_cast<ferro_sim_certainty>(question.answer);
  }
  bool is_known(int i) const { return certainty(memory_.at(i), kBytes) == FERRO_SIM_KNOWN; }

  SimGpu gpu_{64};
  std::array<CUdeviceptr, 4> memory_{};
};

constexpr const char* kTwoPointers = ".entry k(.param .u64 a, .param .align 8 .b8 b[24]) {}";

TEST_F(OutsideKernels, WriteWhereArgumentsAndStructuresPoint) {
  const CUfunction function = kernel(kTwoPointers, "k");
  CUdeviceptr first = memory_[1] + 100;
  std::array<std::uint64_t, 3> structure = {7, 0, memory_[2] + kBytes - 1};
  void* arguments[] = {&first, structure.data()};
  launch(function, static_cast<void**>(arguments));
  EXPECT_TRUE(is_known(0));
  EXPECT_FALSE(is_known(1));
  EXPECT_FALSE(is_known(2));
  EXPECT_TRUE(is_known(3));
  launch(function, static_cast<void**>(arguments));
  EXPECT_EQ(prepared, 2);
  EXPECT_EQ(names, std::vector<std::string>{"k"});
  // Later writes are known again.
  SimGpu::expect(cuMemsetD8(memory_[1], 1, kBytes));
  EXPECT_TRUE(is_known(1));
}

TEST_F(OutsideKernels, WriteOnlyToTheBlock) {
  block_begin = memory_[1] + kBlock;
  std::uint64_t buffer[] = {block_begin + 8, 0};
  std::size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, static_cast<void*>(buffer),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  launch(kernel(".version 9.0", "unknown"), nullptr, static_cast<void**>(extra));
  EXPECT_EQ(certainty(block_begin, kBlock), FERRO_SIM_UNKNOWN);
  EXPECT_EQ(certainty(memory_[1], kBlock), FERRO_SIM_KNOWN);
  EXPECT_EQ(certainty(block_begin + kBlock, kBytes - 2 * kBlock), FERRO_SIM_KNOWN);
}

TEST_F(OutsideKernels, FollowAddressesInMemory) {
  const CUfunction function = kernel(".entry _Z1fPKPi(.param .u64 a) {}", "_Z1fPKPi");
  const std::uint64_t list[] = {memory_[2], memory_[3] + 8};
  SimGpu::expect(cuMemcpyHtoD(memory_[0], static_cast<const void*>(list), sizeof list));
  ferro_sim_counts()->noting = 1;  // the caller knows what it writes to the list
  void* arguments[] = {memory_.data()};
  launch(function, static_cast<void**>(arguments));
  ferro_sim_counts()->noting = 0;
  EXPECT_TRUE(is_known(0));
  EXPECT_TRUE(is_known(1));
  EXPECT_FALSE(is_known(2));
  EXPECT_FALSE(is_known(3));
}

TEST_F(OutsideKernels, DoNotWriteThroughPointersToConstants) {
  const CUfunction function =
      kernel(".entry _Z1fPKiPi(.param .u64 a, .param .u64 b) {}", "_Z1fPKiPi");
  void* arguments[] = {&memory_[0], &memory_[1]};
  launch(function, static_cast<void**>(arguments));
  EXPECT_TRUE(is_known(0));
  EXPECT_FALSE(is_known(1));
}

TEST_F(OutsideKernels, OfAnUnknownLayoutMakeEverythingUnknown) {
  void* arguments[] = {&memory_[0]};
  launch(kernel(".version 9.0", "unknown"), static_cast<void**>(arguments));
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(is_known(i));
  }
  SimGpu::expect(cuMemsetD8(memory_[1], 0, kBytes));
  EXPECT_TRUE(is_known(1));
}

TEST_F(OutsideKernels, WithinOperatorsAndWithoutAnObserverChangeNothing) {
  void* arguments[] = {&memory_[0]};
  const CUfunction function = kernel(".version 9.0", "unknown");
  ferro_sim_counts()->operators = 1;
  launch(function, static_cast<void**>(arguments));
  ferro_sim_counts()->operators = 0;
  EXPECT_TRUE(is_known(0));
  EXPECT_EQ(prepared, 0);
  ferro_sim_observe_outside(nullptr);
  launch(function, static_cast<void**>(arguments));
  EXPECT_TRUE(is_known(0));
}

}  // namespace sim_outside_kernel_test
}  // namespace ferro::sim
