// The instructions of model tests and fuzzers: programs as plain values, printed as C++ that a test
// can use. decoding.h makes them from bytes.
#pragma once

#include "support/sim_gpu.h"

#include <cstddef>
#include <iterator>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace ferro::testing {

// Numbers of pools, streams and blocks are taken modulo the existing ones.
struct Allocate {
  unsigned pool, stream;
  std::size_t size;
};
struct Free {
  unsigned block;
};
// A block is freed while another stream still reads it, and no use was recorded.
enum class LateWait : unsigned {
  kOfHost,      // right before the next request of the block's own stream and size class
  kOfStream,    // at the same time, by that stream
  kWhereItLay,  // by that stream, right before it uses memory at the same addresses again
};
struct FreeInUse {
  unsigned block, stream;
  LateWait wait;
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

enum class Place {
  kFreed,    // the address of a lately freed block
  kInside,   // an address inside of it
  kLive,     // the address of a live block
  kBehind,   // on the first page after a live block
  kNowhere,  // outside of all spans
};
struct AllocateAt {
  Place place;
  unsigned which;  // of the freed or live blocks
  unsigned owner;  // 0: that block's own pool and stream, else others
  std::size_t size;
};
struct Export {
  unsigned block;
};
struct SetUseOnOom {
  unsigned pool;
  bool use;
};
struct AddPeer {};
struct OthersHold {  // other programs take so many pages of the device
  std::size_t pages;
};
struct DestroyStream {};  // the short one
enum class Relief { kNone, kFreeBlocks, kAllocate, kEmptyCache };
struct OnShortage {  // from now on, whenever memory is short
  Relief relief;
  unsigned what;  // which block is freed first, or which stream gets one
  std::size_t size;
};
struct SetRejectionLimit {
  std::size_t pages;  // 0: none
};

struct Nap {};  // all memory sleeps and wakes

// Exclusive groups, which worlds with `groups` have.
struct JoinGroup {
  unsigned pool, group;
};
struct LeaveGroup {
  unsigned pool;
};
struct BeginGraph {  // a capture into the pool
  unsigned pool, stream;
};
struct EndGraph {
  unsigned pool;
  bool succeeds;
};
struct Replay {
  unsigned graph, stream;
};

using Instruction =
    std::variant<Allocate, Free, FreeInUse, RecordStream, Advance, Finish, BeginCapture, EndCapture,
                 EmptyCache, EmptyPool, CollectPending, HoldPool, ReleasePool, TakeCheckpoint,
                 RestoreCheckpoint, SetLimit, FailNext, AllocateAt, Export, SetUseOnOom, AddPeer,
                 OthersHold, DestroyStream, OnShortage, SetRejectionLimit, JoinGroup, LeaveGroup,
                 BeginGraph, EndGraph, Replay, Nap>;

inline constexpr const char* kFailing[] = {"cuMemCreate",          "cuMemMap",
                                           "cuMemSetAccess",       "cuMemUnmap",
                                           "cuMemRelease",         "cuEventRecord",
                                           "cuEventQuery",         "cuEventSynchronize",
                                           "cuMemGetInfo_v2",      "cuEventCreate",
                                           "cuMemAddressReserve",  "cuStreamGetCaptureInfo_v3",
                                           "cuMemAddressFree",     "cuMemExportToShareableHandle",
                                           "cuMemcpyDtoDAsync_v2", "cuCtxSynchronize",
                                           "cuStreamWaitEvent",    "cuCtxRecordEvent",
                                           "cuStreamGetCtx",       "cuStreamIsCapturing",
                                           "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
                                           "cuStreamSynchronize",  "cuMemHostRegister_v2",
                                           "cuStreamCreate"};

// The settings that a program runs in.
struct World {
  bool coarse_handles = false;
  bool short_streams = false;  // the last stream is destroyed and replaced
  unsigned headroom = 0;       // pages
  bool groups = false;         // pools share the pages of their graphs' scratch
  bool any_order = false;      // pools without a declared group are groups of their own
};

struct Program {
  World world;
  std::vector<Instruction> instructions;
};

inline std::string to_code(const Instruction& instruction) {
  std::ostringstream out;
  out << std::boolalpha;
  struct Print {
    std::ostringstream& out;
    void operator()(const Allocate& i) const {
      out << "Allocate{" << i.pool << ", " << i.stream << ", " << i.size << "}";
    }
    void operator()(const Free& i) const { out << "Free{" << i.block << "}"; }
    void operator()(const FreeInUse& i) const {
      out << "FreeInUse{" << i.block << ", " << i.stream << ", LateWait("
          << static_cast<unsigned>(i.wait) << ")}";
    }
    void operator()(const RecordStream& i) const {
      out << "RecordStream{" << i.block << ", " << i.stream << "}";
    }
    void operator()(const Advance& i) const { out << "Advance{" << i.stream << "}"; }
    void operator()(const Finish& i) const { out << "Finish{" << i.stream << "}"; }
    void operator()(const BeginCapture& i) const { out << "BeginCapture{" << i.stream << "}"; }
    void operator()(const EndCapture& i) const { out << "EndCapture{" << i.stream << "}"; }
    void operator()(const EmptyCache&) const { out << "EmptyCache{}"; }
    void operator()(const Nap&) const { out << "Nap{}"; }
    void operator()(const EmptyPool& i) const { out << "EmptyPool{" << i.pool << "}"; }
    void operator()(const CollectPending&) const { out << "CollectPending{}"; }
    void operator()(const HoldPool& i) const { out << "HoldPool{" << i.pool << "}"; }
    void operator()(const ReleasePool& i) const { out << "ReleasePool{" << i.pool << "}"; }
    void operator()(const TakeCheckpoint& i) const { out << "TakeCheckpoint{" << i.pool << "}"; }
    void operator()(const RestoreCheckpoint&) const { out << "RestoreCheckpoint{}"; }
    void operator()(const SetLimit& i) const { out << "SetLimit{" << i.pages << "}"; }
    void operator()(const FailNext& i) const {
      out << "FailNext{" << i.function << ", " << i.out_of_memory << "}";
    }
    void operator()(const AllocateAt& i) const {
      static constexpr const char* kPlaces[] = {"kFreed", "kInside", "kLive", "kBehind",
                                                "kNowhere"};
      out << "AllocateAt{Place::" << kPlaces[static_cast<int>(i.place)] << ", " << i.which << ", "
          << i.owner << ", " << i.size << "}";
    }
    void operator()(const Export& i) const { out << "Export{" << i.block << "}"; }
    void operator()(const SetUseOnOom& i) const {
      out << "SetUseOnOom{" << i.pool << ", " << i.use << "}";
    }
    void operator()(const AddPeer&) const { out << "AddPeer{}"; }
    void operator()(const OthersHold& i) const { out << "OthersHold{" << i.pages << "}"; }
    void operator()(const DestroyStream&) const { out << "DestroyStream{}"; }
    void operator()(const OnShortage& i) const {
      static constexpr const char* kReliefs[] = {"kNone", "kFreeBlocks", "kAllocate",
                                                 "kEmptyCache"};
      out << "OnShortage{Relief::" << kReliefs[static_cast<int>(i.relief)] << ", " << i.what << ", "
          << i.size << "}";
    }
    void operator()(const SetRejectionLimit& i) const {
      out << "SetRejectionLimit{" << i.pages << "}";
    }
    void operator()(const JoinGroup& i) const {
      out << "JoinGroup{" << i.pool << ", " << i.group << "}";
    }
    void operator()(const LeaveGroup& i) const { out << "LeaveGroup{" << i.pool << "}"; }
    void operator()(const BeginGraph& i) const {
      out << "BeginGraph{" << i.pool << ", " << i.stream << "}";
    }
    void operator()(const EndGraph& i) const {
      out << "EndGraph{" << i.pool << ", " << i.succeeds << "}";
    }
    void operator()(const Replay& i) const {
      out << "Replay{" << i.graph << ", " << i.stream << "}";
    }
  };
  std::visit(Print{out}, instruction);
  return out.str();
}

inline std::string to_code(const World& world) {
  std::ostringstream out;
  out << std::boolalpha << "{.coarse_handles = " << world.coarse_handles
      << ", .short_streams = " << world.short_streams << ", .headroom = " << world.headroom
      << ", .groups = " << world.groups << ", .any_order = " << world.any_order << "}";
  return out.str();
}

// The first `count` instructions of a program.
inline std::string to_code(const Program& program, std::size_t count) {
  std::string text = "run_program({" + to_code(program.world) + ", {\n";
  for (std::size_t i = 0; i < count; ++i) {
    text += "    " + to_code(program.instructions[i]) + ",\n";
  }
  return text + "}}";
}

}  // namespace ferro::testing
