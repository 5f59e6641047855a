// What a model test or a fuzzer does to a device's memory: instructions as plain values, made from
// bytes, and printed as C++ that a test can take over.
#pragma once

#include "ferro/core/block.h"
#include "support/sim_gpu.h"

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace ferro::testing {

// Numbers of pools, streams and blocks are taken modulo what there is.
struct Allocate {
  unsigned pool, stream;
  std::size_t size;
};
struct Free {
  unsigned block;
};
struct RecordStream {
  unsigned block, stream;
};
struct Advance {  // the oldest unfinished work of the stream completes
  unsigned stream;
};
struct Finish {  // all of it
  unsigned stream;
};
struct BeginCapture {
  unsigned stream;
};
struct EndCapture {
  unsigned stream;
};
struct EmptyCache {};
struct EmptyPool {
  unsigned pool;
};
struct CollectPending {};
struct HoldPool {
  unsigned pool;
};
struct ReleasePool {
  unsigned pool;
};
struct TakeCheckpoint {
  unsigned pool;
};
struct RestoreCheckpoint {};
struct SetLimit {
  std::size_t pages;  // 0: none
};
struct FailNext {  // the next call of one driver function
  unsigned function;
  bool out_of_memory;
};

using Instruction =
    std::variant<Allocate, Free, RecordStream, Advance, Finish, BeginCapture, EndCapture,
                 EmptyCache, EmptyPool, CollectPending, HoldPool, ReleasePool, TakeCheckpoint,
                 RestoreCheckpoint, SetLimit, FailNext>;

inline constexpr const char* kFailing[] = {
    "cuMemCreate",     "cuMemMap",      "cuMemSetAccess",      "cuMemUnmap",
    "cuMemRelease",    "cuEventRecord", "cuEventQuery",        "cuEventSynchronize",
    "cuMemGetInfo_v2", "cuEventCreate", "cuMemAddressReserve", "cuStreamGetCaptureInfo_v3"};

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

// What a whole program keeps to, so that some are about pages on one line and some about pools.
struct Profile {
  bool pools = true;        // private ones too
  unsigned streams = 3;     // 1 to 3
  bool large_only = false;  // requests of half a page and more
};

inline Profile next_profile(ByteReader& in) {
  const unsigned bits = in.byte();
  return {(bits & 1) == 0, 1 + bits / 2 % 3, (bits & 128) != 0};
}

// Sizes on both sides of every limit that matters: alignment, small and large, pages.
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
      return (1 + n % 6) * kPageBytes;
    default:
      return (1 + n % 9) * kPageBytes - kBlockAlignment * (n % 2);
  }
}

inline Instruction next_instruction(ByteReader& in, const Profile& profile) {
  const unsigned kind = in.below(64);
  if (kind < 24) {
    const unsigned pool = in.byte();
    const unsigned stream = in.below(profile.streams);
    // Programs use the default pool most of the time.
    return Allocate{profile.pools && pool >= 160 ? pool : 0, stream, next_size(in, profile)};
  }
  if (kind < 40) return Free{in.byte()};
  if (kind < 45) return RecordStream{in.byte(), in.byte()};
  if (kind < 49) return Advance{in.byte()};
  if (kind < 50) return Finish{in.byte()};
  if (kind < 51) return BeginCapture{in.byte()};
  if (kind < 53) return EndCapture{in.byte()};
  if (kind < 54) return EmptyCache{};
  if (kind < 55) return EmptyPool{in.byte()};
  if (kind < 56) return CollectPending{};
  if (kind < 58) return HoldPool{in.byte()};
  if (kind < 59) return ReleasePool{in.byte()};
  if (kind < 60) return TakeCheckpoint{in.byte()};
  if (kind < 61) return RestoreCheckpoint{};
  if (kind < 62) return SetLimit{in.below(2) == 0 ? 0U : 12 + in.below(24)};
  return FailNext{in.byte(), in.below(2) == 0};
}

inline std::string to_code(const Instruction& instruction) {
  std::ostringstream out;
  struct Print {
    std::ostringstream& out;
    void operator()(const Allocate& i) const {
      out << "Allocate{" << i.pool << ", " << i.stream << ", " << i.size << "}";
    }
    void operator()(const Free& i) const { out << "Free{" << i.block << "}"; }
    void operator()(const RecordStream& i) const {
      out << "RecordStream{" << i.block << ", " << i.stream << "}";
    }
    void operator()(const Advance& i) const { out << "Advance{" << i.stream << "}"; }
    void operator()(const Finish& i) const { out << "Finish{" << i.stream << "}"; }
    void operator()(const BeginCapture& i) const { out << "BeginCapture{" << i.stream << "}"; }
    void operator()(const EndCapture& i) const { out << "EndCapture{" << i.stream << "}"; }
    void operator()(const EmptyCache&) const { out << "EmptyCache{}"; }
    void operator()(const EmptyPool& i) const { out << "EmptyPool{" << i.pool << "}"; }
    void operator()(const CollectPending&) const { out << "CollectPending{}"; }
    void operator()(const HoldPool& i) const { out << "HoldPool{" << i.pool << "}"; }
    void operator()(const ReleasePool& i) const { out << "ReleasePool{" << i.pool << "}"; }
    void operator()(const TakeCheckpoint& i) const { out << "TakeCheckpoint{" << i.pool << "}"; }
    void operator()(const RestoreCheckpoint&) const { out << "RestoreCheckpoint{}"; }
    void operator()(const SetLimit& i) const { out << "SetLimit{" << i.pages << "}"; }
    void operator()(const FailNext& i) const {
      out << "FailNext{" << i.function << ", " << (i.out_of_memory ? "true" : "false") << "}";
    }
  };
  std::visit(Print{out}, instruction);
  return out.str();
}

inline std::string to_code(const std::vector<Instruction>& program) {
  std::string text = "run_program({\n";
  for (const Instruction& instruction : program) {
    text += "    " + to_code(instruction) + ",\n";
  }
  return text + "}, handles);\n";
}

}  // namespace ferro::testing
