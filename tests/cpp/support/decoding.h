// Decodes bytes of a fuzzer or a seed to programs.
#pragma once

#include "ferro/core/types/block.h"
#include "support/instructions.h"

#include <cstddef>
#include <cstdint>

namespace ferro::testing {

// Reads numbers from bytes; zeros follow the end.
class ByteReader {
 public:
  ByteReader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return at_ >= size_; }
  unsigned byte() { return empty() ? 0U : data_[at_++]; }
  unsigned below(unsigned bound) { return byte() % bound; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

// Properties of a whole program, so that some programs concentrate on pages of one heap and others
// on pools.
struct Profile {
  bool pools = true;        // private ones too
  unsigned streams = 3;     // 1 to 3
  bool large_only = false;  // requests of half a page and more
  bool faults = true;       // calls of the driver that fail
  bool groups = false;
};

inline Profile next_profile(ByteReader& in, const World& world) {
  const unsigned bits = in.byte();
  return {(bits & 1) == 0 || world.groups, 1 + bits / 2 % 3, (bits & 128) != 0, (bits & 64) == 0,
          world.groups};
}

inline World next_world(ByteReader& in) {
  const unsigned bits = in.byte();
  const unsigned headroom = in.byte();
  return {(bits & 1) != 0, (bits & 16) != 0, headroom % 4 == 0 ? 1 + headroom / 4 % 8 : 0,
          (bits & 128) != 0, headroom % 8 < 4};
}

// Sizes on both sides of every relevant limit: alignment, small and large, pages, blocks exported
// as they are and blocks joined before.
inline std::size_t next_size(ByteReader& in, const Profile& profile) {
  const std::size_t n = 1 + in.byte();
  switch (profile.large_only ? 5 + in.below(3) : in.below(8)) {
    case 0:
    case 1:
    case 2:
      return n % 8 * kBlockAlignment + kBlockAlignment;
    case 3:
    case 4:
      return n * kBlockAlignment * 8;
    case 5:
      return (1 + n % 3) * kPageBytes / 2 + n % 4 * kBlockAlignment;
    case 6:
      return (n % 32 == 0 ? 16 + n / 32 : 1 + n % 6) * kPageBytes;
    default:
      return (1 + n % 9) * kPageBytes - kBlockAlignment * (n % 2);
  }
}

inline unsigned next_pool(ByteReader& in, const Profile& profile) {
  const unsigned pool = in.byte();
  // Programs use the default pool most of the time.
  return profile.pools && pool >= (profile.groups ? 64U : 160U) ? pool : 0;
}

inline AllocateAt next_allocate_at(ByteReader& in, const Profile& profile) {
  const auto place = static_cast<Place>(in.below(5));
  const unsigned which = in.byte();
  const unsigned owner = in.below(4) == 0 ? in.byte() : 0;
  const std::size_t size = next_size(in, profile);
  // Some wrap around the end of all addresses.
  return {place, which, owner, which % 16 == 0 ? ~std::size_t{0} - size + 1 : size};
}

inline Instruction next_group_instruction(ByteReader& in) {
  const unsigned kind = in.below(16);
  if (kind < 3) return JoinGroup{in.byte(), in.byte()};
  if (kind < 4) return LeaveGroup{in.byte()};
  if (kind < 8) return BeginGraph{in.byte(), in.byte()};
  if (kind < 11) return EndGraph{in.byte(), in.below(4) != 0};
  return Replay{in.byte(), in.byte()};
}

inline Instruction next_instruction(ByteReader& in, const Profile& profile) {
  const unsigned kind = in.below(profile.groups ? 120 : 88);
  if (kind >= 100) return next_group_instruction(in);
  if (kind < 24 || kind > 84) {
    const unsigned pool = next_pool(in, profile);
    const unsigned stream = in.below(profile.streams);
    return Allocate{pool, stream, next_size(in, profile)};
  }
  if (kind < 33) return Free{in.byte()};
  if (kind < 40) {
    const unsigned block = in.byte();
    const unsigned stream = in.byte();
    constexpr std::array kWaits = {LateWait::kOfHost, LateWait::kOfStream, LateWait::kOfStream,
                                   LateWait::kWhereItLay};
    return FreeInUse{block, stream, kWaits[stream % kWaits.size()]};
  }
  if (kind < 45) return RecordStream{in.byte(), in.byte()};
  if (kind < 49) return Advance{in.byte()};
  if (kind < 50) return Finish{in.byte()};
  if (kind < 51) return BeginCapture{in.byte()};
  if (kind < 53) return EndCapture{in.byte()};
  if (kind < 54) return EmptyCache{};
  if (kind < 55) return EmptyPool{in.byte()};
  if (kind < 56) return CollectPending{};
  if (kind < 57) return HoldPool{in.byte()};
  if (kind < 59) return ReleasePool{in.byte()};
  if (kind < 60) return TakeCheckpoint{in.byte()};
  if (kind < 61) return RestoreCheckpoint{};
  if (kind < 62) return SetLimit{in.below(2) == 0 ? 0U : 12 + in.below(24)};
  if (kind < 64) {
    const unsigned function = in.byte();
    const bool out_of_memory = in.below(2) == 0;
    return profile.faults ? Instruction{FailNext{function, out_of_memory}} : Advance{function};
  }
  if (kind < 69) return next_allocate_at(in, profile);
  if (kind < 75) return Export{in.byte()};
  if (kind < 76) return SetUseOnOom{in.byte(), in.below(2) == 0};
  if (kind < 77) {
    const unsigned which = in.below(4);
    return which == 0 ? Instruction{AddPeer{}} : which == 1 ? Instruction{CollectPending{}} : Nap{};
  }
  if (kind < 79) return OthersHold{in.below(2) == 0 ? 0U : in.below(24)};
  if (kind < 81) return DestroyStream{};
  if (kind < 84) {
    const auto relief = static_cast<Relief>(in.below(4));
    const unsigned what = in.byte();
    return OnShortage{relief, what, next_size(in, profile)};
  }
  return SetRejectionLimit{in.below(2) == 0 ? 0U : 8 + in.below(24)};
}

inline Program decode(const std::uint8_t* data, std::size_t size) {
  ByteReader in(data, size);
  Program program{next_world(in), {}};
  const Profile profile = next_profile(in, program.world);
  while (!in.empty()) {
    program.instructions.push_back(next_instruction(in, profile));
  }
  return program;
}

}  // namespace ferro::testing
