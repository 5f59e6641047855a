#include "sim/machine/outside_kernel.h"

#include "sim/machine/locate.h"
#include "sim/machine/machine.h"
#include "sim/memory/origins.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace ferro::sim {
namespace {

FindBlock find_block = nullptr;

// Origins of a block that count for the identity of what a kernel wrote.
constexpr std::size_t kMaxOrigins = 64;

// The whole allocation of the driver, or the mappings without a gap around an address.
AddressRange allocation_at(const Machine& machine, CUdeviceptr at, CUdeviceptr base,
                           const Mapping& mapping) {
  if (mapping.plain && !mapping.pages->imported()) {
    if (const auto found = machine.device(mapping.pages->device()).allocations.find(at)) {
      return {found->base, found->bytes};
    }
  }
  CUdeviceptr end = base + mapping.bytes();
  CUdeviceptr next = 0;
  while (const Mapping* const before = machine.space().find_mapping(base - 1, &next)) {
    if (before->plain != mapping.plain) {
      break;
    }
    base = next;
  }
  while (const Mapping* const behind = machine.space().find_mapping(end)) {
    if (behind->plain != mapping.plain) {
      break;
    }
    end += behind->bytes();
  }
  return {base, end - base};
}

std::optional<AddressRange> block_at(Machine& machine, CUdeviceptr at) {
  CUdeviceptr base = 0;
  const Mapping* const mapping = machine.space().find_mapping(at, &base);
  if (mapping == nullptr) {
    return std::nullopt;
  }
  AddressRange block;
  std::vector<Segment> segments;
  if (find_block != nullptr && find_block(at, &block.at, &block.bytes) != 0 &&
      locate(machine, block.at, block.bytes, segments)) {
    return block;
  }
  return allocation_at(machine, at, base, *mapping);
}

// Finds the blocks that the words of some bytes point into.
class Blocks {
 public:
  explicit Blocks(Machine& machine) : machine_(machine) {
    const auto& reserved = machine.space().reservations();
    if (!reserved.empty()) {
      lowest_ = reserved.begin()->first;
      bytes_ = reserved.rbegin()->first + reserved.rbegin()->second - lowest_;
    }
  }

  void add(const std::byte* bytes, std::size_t count, std::vector<AddressRange>& found) const {
    for (std::size_t at = 0; at + sizeof(CUdeviceptr) <= count; at += sizeof(CUdeviceptr)) {
      CUdeviceptr word = 0;
      std::memcpy(&word, bytes + at, sizeof word);
      if (word - lowest_ >= bytes_) {
        continue;
      }
      const auto block = block_at(machine_, word);
      if (block && std::find(found.begin(), found.end(), *block) == found.end()) {
        found.push_back(*block);
      }
    }
  }

 private:
  Machine& machine_;
  CUdeviceptr lowest_ = 0;
  std::size_t bytes_ = 0;  // from the first reservation to the last
};

// The program passes a launch's arguments as one buffer: pairs of a key and a value, and a null key.
void add_buffer(const Blocks& blocks, void* const* extra, std::vector<AddressRange>& found) {
  const std::byte* buffer = nullptr;
  std::size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const std::byte*>(extra[1]);
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const std::size_t*>(extra[1]);
    }
  }
  blocks.add(buffer, buffer == nullptr ? 0 : bytes, found);
}

// Empty for memory that was unmapped since.
std::vector<Segment> segments_of(Machine& machine, CUdeviceptr at, std::size_t bytes) {
  std::vector<Segment> segments;
  return locate(machine, at, bytes, segments) ? segments : std::vector<Segment>{};
}

// The blocks whose addresses a range contains.
void add_listed(Machine& machine, const AddressRange& range, std::vector<AddressRange>& found) {
  const Blocks blocks(machine);
  const std::size_t bytes = std::min(range.bytes, kFollowedBytes);
  for (const Segment& segment : segments_of(machine, range.at, bytes)) {
    segment.memory->for_each_plain(
        segment.offset, segment.bytes,
        [&](const std::byte* there, std::size_t count) { blocks.add(there, count, found); });
  }
}

void add_origins(Machine& machine, const AddressRange& range, std::vector<std::uint64_t>& words) {
  std::vector<ferro_sim_origin_piece> origins;
  for (const Segment& segment : segments_of(machine, range.at, range.bytes)) {
    segment.memory->list_origins(segment.offset, segment.bytes, kMaxOrigins, origins);
    if (origins.size() >= kMaxOrigins) {
      break;
    }
  }
  for (const ferro_sim_origin_piece& piece : origins) {
    words.insert(words.end(), {piece.origin.identity, piece.offset, piece.bytes});
  }
}

}  // namespace

void set_block_finder(FindBlock find) { find_block = find; }

KernelReach reach_of(Machine& machine, Function* function, void* const* arguments,
                     void* const* extra, bool only_memory) {
  KernelReach reach;
  if (function != nullptr) {
    const std::string& name = function->name;
    reach.identity =
        hash_of_sample(reinterpret_cast<const std::byte*>(name.data()), name.size(), name.size());
  }
  const Blocks blocks(machine);
  if (arguments == nullptr && extra != nullptr) {
    add_buffer(blocks, extra, only_memory ? reach.read : reach.written);
  } else {
    const Parameters* const known =
        function == nullptr ? nullptr : machine.modules().find_parameters(*function);
    if (known == nullptr || (arguments == nullptr && !known->empty())) {
      reach.everything = !only_memory;
      return reach;
    }
    for (std::size_t i = 0; i < known->size(); ++i) {
      const bool read_only = only_memory || machine.modules().is_read_only(*function, i);
      blocks.add(static_cast<const std::byte*>(arguments[i]), (*known)[i].bytes,
                 read_only ? reach.read : reach.written);
    }
  }
  for (const CUdeviceptr at : machine.modules().variables()) {
    if (const auto block = block_at(machine, at)) {
      reach.written.push_back(*block);
    }
  }
  return reach;
}

std::vector<UnknownBytes> forget_reach(Machine& machine, const KernelReach& reach) {
  if (reach.everything) {
    forget_everything(machine);
    return {UnknownBytes{}};
  }
  std::vector<AddressRange> written = reach.written;
  for (const auto* ranges : {&reach.written, &reach.read}) {
    for (const AddressRange& range : *ranges) {
      add_listed(machine, range, written);
    }
  }
  std::vector<UnknownBytes> forgotten;
  if (written.empty()) {
    return forgotten;
  }
  std::vector<std::uint64_t> words = {reach.identity};
  for (const auto* ranges : {&std::as_const(written), &reach.read}) {
    for (const AddressRange& range : *ranges) {
      add_origins(machine, range, words);
    }
  }
  const std::uint64_t identity = hash_of(words);
  for (const AddressRange& range : written) {
    const std::uint64_t own[] = {identity, forgotten.size()};
    const ferro_sim_origin origin = {hash_of(own), FERRO_SIM_KNOWN, 0, 0, 0, 0};
    forgotten.push_back({range.at, range.bytes, origin, 0});
    std::size_t offset = 0;
    for (const Segment& segment : segments_of(machine, range.at, range.bytes)) {
      segment.memory->forget(segment.offset, segment.bytes, true, origin, offset);
      offset += segment.bytes;
    }
  }
  return forgotten;
}

void add_variable(Machine& machine, CUdeviceptr at) {
  machine.modules().add_variable(at);
  if (const auto block = block_at(machine, at)) {
    for (const Segment& segment : segments_of(machine, block->at, block->bytes)) {
      segment.memory->mark(segment.offset, segment.bytes, FERRO_SIM_UNKNOWN);
    }
  }
}

void forget_everything(Machine& machine) {
  constexpr std::size_t kAll = std::size_t{1} << 62;
  for (int i = 0; i < machine.device_count(); ++i) {
    machine.device(i).memory.mark(0, kAll, FERRO_SIM_UNKNOWN);
  }
  for (const auto& [base, mapping] : machine.space().mappings()) {
    const Pages& pages = *mapping.pages;
    if (pages.memory().is_shared()) {
      pages.memory().mark(pages.offset(), pages.bytes(), FERRO_SIM_UNKNOWN);
    }
  }
}

}  // namespace ferro::sim
