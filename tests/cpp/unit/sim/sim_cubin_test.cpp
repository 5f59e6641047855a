// The parameters of kernels: read from a cubin, kept by captured launches, queried through the
// Driver class.
#include "ferro/driver/driver.h"
#include "sim/machine/cubin.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <string>
#include <vector>

namespace ferro::sim {
namespace sim_cubin_test {

using testing::kPageBytes;
using testing::SimGpu;

// A cubin with one kernel, `k`, whose parameters are listed in reverse order, as by compilers.
class SmallCubin {
 public:
  explicit SmallCubin(const Parameters& parameters) {
    bytes_.resize(sizeof(Elf64_Ehdr) + 3 * sizeof(Elf64_Shdr));
    const std::string names{"\0.shstrtab\0.nv.info.k\0", 22};
    Elf64_Shdr strings{};
    strings.sh_name = 1;
    strings.sh_offset = append(names.data(), names.size());
    strings.sh_size = names.size();
    Elf64_Shdr info{};
    info.sh_name = 11;
    info.sh_offset = bytes_.size();
    append_word(0x00041903);  // an entry that contains its value
    for (std::size_t i = parameters.size(); i-- > 0;) {
      const auto& [offset, size] = parameters[i];
      append_word(0x000c1704);
      append_word(0);
      append_word(static_cast<std::uint32_t>(i | offset << 16));
      append_word(static_cast<std::uint32_t>(size << 18 | 0x1f000));
    }
    info.sh_size = bytes_.size() - info.sh_offset;
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_flags = 90;  // the architecture
    header.e_shoff = sizeof header;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shstrndx = 1;
    std::memcpy(bytes_.data(), &header, sizeof header);
    std::memcpy(bytes_.data() + sizeof header + sizeof(Elf64_Shdr), &strings, sizeof strings);
    std::memcpy(bytes_.data() + sizeof header + 2 * sizeof(Elf64_Shdr), &info, sizeof info);
  }
  const std::byte* data() const { return bytes_.data(); }

 private:
  std::size_t append(const void* from, std::size_t count) {
    const auto* bytes = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + count);
    return bytes_.size() - count;
  }
  void append_word(std::uint32_t word) { append(&word, sizeof word); }

  std::vector<std::byte> bytes_;
};

const Parameters kParameters = {{0, 8}, {8, 4}, {16, 24}};

TEST(SimCubin, ListsTheParametersOfAKernelInTheirOrder) {
  const SmallCubin cubin(kParameters);
  const auto found = read_parameters({cubin.data()});
  ASSERT_EQ(found.size(), 1U);
  const Parameters& parameters = found.at("k");
  ASSERT_EQ(parameters.size(), kParameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].offset, kParameters[i].offset);
    EXPECT_EQ(parameters[i].bytes, kParameters[i].bytes);
  }
}

TEST(SimCubin, IsFoundInAnImageForTheCard) {
  const SmallCubin cubin(kParameters);
  const auto found = find_code(cubin.data(), 90);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->at, cubin.data());
  ASSERT_TRUE(find_code(".version 9.0", 90));
  EXPECT_EQ(find_code(".version 9.0", 90)->bytes, 12U);
  EXPECT_FALSE(find_code("neither", 90));
  EXPECT_FALSE(find_code(nullptr, 90));
  EXPECT_FALSE(is_registered(cubin.data()));
}

TEST(SimCubin, WhatIsNoCubinHasNoParameters) {
  constexpr std::array<std::byte, 64> kNothing{};
  EXPECT_TRUE(read_parameters({kNothing.data(), kNothing.size()}).empty());
  // Compressed, and cut off.
  std::array<std::byte, 64> cut{};
  constexpr std::uint32_t kMagic = 0xfd2fb528;
  std::memcpy(cut.data(), &kMagic, sizeof kMagic);
  EXPECT_TRUE(read_parameters({cut.data(), cut.size()}).empty());
}

class CapturedWords : public ::testing::Test {
 protected:
  CUfunction kernel(const SmallCubin& cubin) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    SimGpu::expect(cuModuleLoadData(&module, cubin.data()));
    SimGpu::expect(cuModuleGetFunction(&function, module, "k"));
    return function;
  }
  static void launch(CUfunction function, StreamId stream, void** arguments) {
    SimGpu::expect(
        cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, testing::raw(stream), arguments, nullptr));
  }

  SimGpu gpu_{16};
  Driver driver_{SimGpu::api(), 0};
  const StreamId stream_ = SimGpu::make_stream();
};

TEST_F(CapturedWords, ArgumentsCopiesAndFillsGiveWords) {
  const SmallCubin cubin(kParameters);
  const CUfunction function = kernel(cubin);
  const DevicePtr memory = SimGpu::allocate(kPageBytes);
  struct Many {
    std::uint64_t first = 0x1111, second = 0x2222, third = 0x3333;
  } many;
  std::uint64_t pointer = 0x4444;
  int count = 0x5555;
  SimGpu::begin_capture(stream_);
  EXPECT_TRUE(driver_.captured_words(stream_).empty());
  void* arguments[] = {&pointer, &count, &many};
  launch(function, stream_, static_cast<void**>(arguments));
  pointer = many.first = 0x6666;  // the copies count
  SimGpu::fill(stream_, memory, 1, 64);
  driver_.write(memory + 64, 7, 4, stream_);
  SimGpu::expect(SimGpu::api().memcpy_dtod_async(address_of(memory + 128), address_of(memory + 256),
                                                 64, testing::raw(stream_)));
  std::vector<DevicePtr> expected = {DevicePtr{0x1111}, DevicePtr{0x2222}, DevicePtr{0x3333},
                                     DevicePtr{0x4444}};
  for (const std::size_t offset : {0, 64, 128, 256}) {
    expected.push_back(memory + offset);
  }
  EXPECT_EQ(driver_.captured_words(stream_), expected);
  SimGpu::end_capture(stream_);
  EXPECT_TRUE(driver_.captured_words(stream_).empty());
  SimGpu::free(memory);
}

TEST_F(CapturedWords, UnknownParametersGiveNoWords) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  SimGpu::expect(cuModuleLoadData(&module, ".version 9.0"));
  SimGpu::expect(cuModuleGetFunction(&function, module, "k"));
  std::uint64_t pointer = 0x4444;
  void* arguments[] = {&pointer};
  SimGpu::begin_capture(stream_);
  launch(function, stream_, static_cast<void**>(arguments));
  EXPECT_TRUE(driver_.captured_words(stream_).empty());
  SimGpu::end_capture(stream_);
}

TEST_F(CapturedWords, AnOlderDriverGivesNoWordsOfKernels) {
  CudaApi old = SimGpu::api();
  old.func_get_param_info = nullptr;
  Driver driver(old, 0);
  const SmallCubin cubin(kParameters);
  const CUfunction function = kernel(cubin);
  std::uint64_t pointer = 0x4444;
  int count = 0;
  std::array<std::uint64_t, 3> many{};
  void* arguments[] = {&pointer, &count, &many};
  SimGpu::begin_capture(stream_);
  launch(function, stream_, static_cast<void**>(arguments));
  EXPECT_TRUE(driver.captured_words(stream_).empty());
  EXPECT_FALSE(driver_.captured_words(stream_).empty());
  SimGpu::end_capture(stream_);
}

}  // namespace sim_cubin_test
}  // namespace ferro::sim
