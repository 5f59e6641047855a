#include "sim/libraries/cuda/transfers.h"

#include "sim/driver/submission.h"
#include "sim/machine/locate.h"
#include "sim/machine/machine.h"
#include "sim/memory/origins.h"

#define FERRO_SIM_TRANSFERS extern "C" __attribute__((visibility("default")))

using ferro::sim::Machine;
using ferro::sim::Segment;

FERRO_SIM_TRANSFERS int ferro_sim_wait_in_order(void* stream, void (*function)(void*),
                                                void* argument) {
  const std::lock_guard guard(Machine::lock());
  return enqueue(Machine::current(), static_cast<CUstream>(stream), CU_GRAPH_NODE_TYPE_HOST,
                 ferro::sim::HostCall{function, argument, true});
}

FERRO_SIM_TRANSFERS int ferro_sim_has_contents() {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().config().backing ? 1 : 0;
}

FERRO_SIM_TRANSFERS std::int64_t ferro_sim_uncertain(std::uint64_t address, std::size_t bytes,
                                                     FerroSimRange* ranges, std::size_t room) {
  const std::lock_guard guard(Machine::lock());
  std::vector<Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return -1;
  }
  std::size_t count = 0;
  for_each_unsure(segments,
                  [&](std::size_t begin, std::size_t part, ferro_sim_certainty certainty) {
                    if (count < room) {
                      ranges[count] = {begin, part, static_cast<std::uint64_t>(certainty)};
                    }
                    ++count;
                    return true;
                  });
  return static_cast<std::int64_t>(count);
}

FERRO_SIM_TRANSFERS std::uint64_t ferro_sim_identity(std::uint64_t address, std::size_t bytes) {
  constexpr std::size_t kMostPieces = 256;
  const std::lock_guard guard(Machine::lock());
  std::vector<Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return 0;
  }
  std::vector<ferro_sim_origin_piece> pieces;
  for (const Segment& segment : segments) {
    segment.memory->list_origins(segment.offset, segment.bytes, kMostPieces, pieces);
  }
  std::vector<std::uint64_t> words;
  for (const ferro_sim_origin_piece& piece : pieces) {
    words.insert(words.end(), {piece.origin.identity, piece.offset, piece.bytes});
  }
  return ferro::sim::hash_of(words);
}

FERRO_SIM_TRANSFERS int ferro_sim_take(std::uint64_t address, void* destination,
                                       std::size_t bytes) {
  const std::lock_guard guard(Machine::lock());
  std::vector<Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return -1;
  }
  auto* to = static_cast<std::byte*>(destination);
  for (const Segment& segment : segments) {
    segment.memory->compute(segment.offset, segment.bytes);
    segment.memory->read(segment.offset, to, segment.bytes);
    to += segment.bytes;
  }
  return 0;
}

FERRO_SIM_TRANSFERS int ferro_sim_put(std::uint64_t address, const void* source, std::size_t bytes,
                                      int keep, const FerroSimRange* uncertain, std::size_t ranges,
                                      std::uint64_t identity) {
  const std::lock_guard guard(Machine::lock());
  std::vector<Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return -1;
  }
  const auto* from = static_cast<const std::byte*>(source);
  for (const Segment& segment : segments) {
    if (from != nullptr) {
      segment.memory->write(segment.offset, from, segment.bytes);
      from += segment.bytes;
    } else if (keep == 0) {
      segment.memory->discard(segment.offset, segment.bytes);
    }
  }
  const ferro_sim_origin origin = {identity, FERRO_SIM_KNOWN, 0, 0, 0, 0};
  // Unknown ranges last, because they may overlap drawn ones.
  for (const ferro_sim_certainty certainty : {FERRO_SIM_DRAWN, FERRO_SIM_UNKNOWN}) {
    for (std::size_t i = 0; i < ranges; ++i) {
      if (uncertain[i].certainty != static_cast<std::uint64_t>(certainty)) {
        continue;
      }
      segments.clear();
      locate(Machine::current(), address + uncertain[i].begin, uncertain[i].bytes, segments);
      std::size_t offset = uncertain[i].begin;
      for (const Segment& segment : segments) {
        segment.memory->mark(segment.offset, segment.bytes, certainty);
        if (certainty == FERRO_SIM_UNKNOWN) {
          segment.memory->originate(segment.offset, segment.bytes, origin, offset);
        }
        offset += segment.bytes;
      }
    }
  }
  return 0;
}

FERRO_SIM_TRANSFERS void ferro_sim_note_transfer() {
  const std::lock_guard guard(Machine::lock());
  ++Machine::counts()->transfers;
}
