// The driver's choice of the code of an image that a card runs.
#include "sim/machine/image.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace ferro::sim {
namespace sim_image_test {

constexpr std::uint16_t kPtx = 1;
constexpr std::uint16_t kBinary = 2;
constexpr std::uint64_t kPlain = 0x8011;
constexpr std::uint64_t kOfOneArchitecture = 0x108011;
constexpr std::uint64_t kOfOneFamily = 0x1208011;

class FatBinary {
 public:
  FatBinary() { append(std::uint32_t{0xba55ed50}, std::uint16_t{1}, std::uint16_t{16}, 0ULL); }

  FatBinary& add(std::uint16_t kind, std::uint32_t capability, std::uint64_t flags = kPlain) {
    constexpr std::uint32_t kHeader = 64;
    constexpr std::uint64_t kCode = 24;
    const std::size_t end = bytes_.size() + kHeader + kCode;
    append(kind, std::uint16_t{0}, kHeader, kCode, 0U, 0U, std::uint16_t{0}, std::uint16_t{0});
    append(capability, 0U, 0U, flags);
    bytes_.resize(end);
    const std::uint64_t all = bytes_.size() - 16;
    std::memcpy(bytes_.data() + 8, &all, sizeof all);
    return *this;
  }

  int binary(int capability) const {
    const auto chosen = choose_code(bytes_.data(), capability);
    return chosen ? chosen->binary : 0;
  }
  int ptx(int capability) const {
    const auto chosen = choose_code(bytes_.data(), capability);
    return chosen ? chosen->ptx : 0;
  }
  const void* data() const { return bytes_.data(); }

 private:
  template <typename... Values>
  void append(Values... values) {
    const auto one = [this](const auto& value) {
      const auto* from = reinterpret_cast<const std::byte*>(&value);
      bytes_.insert(bytes_.end(), from, from + sizeof value);
    };
    (one(values), ...);
  }

  std::vector<std::byte> bytes_;
};

// The fat binary of a wheel of torch 2.11 for CUDA 13.
FatBinary wheel() {
  FatBinary fat;
  for (const std::uint32_t capability : {75U, 80U, 86U, 90U, 100U, 120U}) {
    fat.add(kBinary, capability);
  }
  return fat;
}

TEST(SimImage, TheNearestLowerBinaryOfTheSameMajorVersionRuns) {
  const FatBinary fat = wheel();
  for (const auto& [card, binary] : {std::pair{75, 75},
                                     {80, 80},
                                     {86, 86},
                                     {87, 86},
                                     {89, 86},
                                     {90, 90},
                                     {100, 100},
                                     {103, 100},
                                     {120, 120},
                                     {121, 120}}) {
    EXPECT_EQ(fat.binary(card), binary) << card;
    EXPECT_EQ(fat.ptx(card), binary) << card;
  }
}

TEST(SimImage, WithoutCodeForTheCardThereIsNone) {
  const FatBinary fat = wheel();
  EXPECT_EQ(choose_code(fat.data(), 70), std::nullopt);
  EXPECT_EQ(choose_code(fat.data(), 110), std::nullopt);
  EXPECT_EQ(choose_code(FatBinary().data(), 90), std::nullopt);
}

TEST(SimImage, PtxIsCompiledForTheCardWhereNoBinaryRuns) {
  const FatBinary fat = FatBinary().add(kBinary, 80).add(kPtx, 70).add(kPtx, 90);
  EXPECT_EQ(fat.binary(86), 80);
  EXPECT_EQ(fat.ptx(86), 80);
  EXPECT_EQ(fat.binary(120), 120);
  EXPECT_EQ(fat.ptx(120), 90);
  EXPECT_EQ(fat.ptx(75), 70);
  EXPECT_EQ(fat.binary(61), 0);
}

TEST(SimImage, CodeOfOneArchitectureOrFamilyStaysThere) {
  const FatBinary own = FatBinary().add(kBinary, 100, kOfOneArchitecture);
  EXPECT_EQ(own.binary(100), 100);
  EXPECT_EQ(own.binary(103), 0);
  const FatBinary family = FatBinary().add(kBinary, 100, kOfOneFamily);
  EXPECT_EQ(family.binary(103), 100);
  EXPECT_EQ(family.binary(120), 0);
  const FatBinary ptx = FatBinary().add(kPtx, 90, kOfOneArchitecture);
  EXPECT_EQ(ptx.ptx(90), 90);
  EXPECT_EQ(ptx.ptx(100), 0);
}

TEST(SimImage, TheWrapperIsOpened) {
  const FatBinary fat = wheel();
  struct {
    std::uint32_t magic = 0x466243b1;
    std::uint32_t version = 1;
    const void* image;
    const void* file = nullptr;
  } wrapper{.image = fat.data()};
  const auto chosen = choose_code(&wrapper, 89);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->binary, 86);
}

TEST(SimImage, CubinsSayTheirArchitecture) {
  std::vector<std::uint8_t> cubin(64);
  std::memcpy(cubin.data(),
              "\x7f"
              "ELF",
              4);
  cubin[48] = 86;
  EXPECT_TRUE(choose_code(cubin.data(), 89));
  EXPECT_FALSE(choose_code(cubin.data(), 90));
  cubin[8] = 8;  // the newer layout
  cubin[48] = 0;
  cubin[49] = 90;
  EXPECT_TRUE(choose_code(cubin.data(), 90));
  EXPECT_FALSE(choose_code(cubin.data(), 89));
}

TEST(SimImage, TextsSayTheirTarget) {
  EXPECT_EQ(choose_code(".version 8.0\n.target sm_80\n", 89)->ptx, 80);
  EXPECT_FALSE(choose_code(".version 8.0\n.target sm_90a\n", 100));
  EXPECT_FALSE(choose_code(".version 8.0\n.target sm_90\n", 89));
  EXPECT_EQ(choose_code(".version 9.0", 75)->binary, 75);
  EXPECT_EQ(choose_code("", 75)->binary, 75);
}

}  // namespace sim_image_test
}  // namespace ferro::sim
