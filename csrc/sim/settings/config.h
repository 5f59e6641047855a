// The settings of the simulated machine: cards, memory, time.
#pragma once

#include "sim/settings/card.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ferro::sim {

// The addresses of a process on x86-64, which the host and all its devices share. An H200 granted
// 823 reservations of 159 GiB, then 187 of 1 GiB, then none.
inline constexpr std::size_t kProcessAddressBytes = std::size_t{1} << 47;

enum class TimeMode : std::uint8_t {
  kEager,        // an operation is complete when its call returns
  kAdversarial,  // operations stay queued; a seeded scheduler runs them late and in any legal order
  kClock,        // operations have durations, calls have costs, and a virtual clock decides
};

// The processor time of the calling thread in microseconds, without waiting.
double thread_processor_time();

struct MachineConfig {
  int devices = 1;
  const Card* card = find_card("h100");
  // Owns `card` if the program passed its figures.
  std::shared_ptr<const Card> own_card;
  // 0 means the card's memory. Otherwise the device has exactly this, and contexts take
  // `own_context_bytes` of it, by default nothing.
  std::size_t memory_bytes = 0;
  std::optional<std::size_t> own_context_bytes;
  // The most addresses that all devices together may reserve. With the default the kernel refuses
  // first, because the host takes some too.
  std::size_t address_space_bytes = kProcessAddressBytes;
  TimeMode mode = TimeMode::kEager;
  std::uint64_t seed = 1;
  // Adversarial: the share of API calls in which a ready operation gets its turn.
  double turn_probability = 0.05;
  // Adversarial: queries of an event do its work at this one, as a GPU does while a host polls; 0:
  // at none.
  std::uint64_t polls = 0;
  // Adversarial: with more queued operations than this, a submitting call runs some, just as a full
  // launch queue blocks the host on a GPU.
  std::size_t max_pending = 8192;
  // Clock: the program's own time in microseconds for each kernel, copy, fill or graph that it
  // submits. With the 3 of the launch this adds up to the 10 of an operation of PyTorch.
  double program_microseconds = 7;
  // Clock: unless 0, replaces `program_microseconds`. The program's own time is then this factor
  // times the processor time of a thread since its last driver call.
  double program_factor = 0;
  // Processor time of the calling thread, in microseconds, for that factor.
  double (*processor_time)() = thread_processor_time;
  // The processes that share the memory of the cards. Empty: this one alone. "new": this one starts
  // to share. Otherwise the path of a process that shares; if the path no longer exists, it means
  // "new".
  std::string sharing;
  // False: pages have no bytes. Copies check their addresses; reads of device memory return zeros.
  bool backing = true;

  std::size_t total_bytes() const { return memory_bytes != 0 ? memory_bytes : card->memory_bytes; }
  std::size_t context_bytes() const {
    return own_context_bytes.value_or(memory_bytes != 0 ? 0 : card->context_bytes);
  }
};

// Reads "key=value" pairs separated by commas, semicolons or blanks into `config`: devices, card (a
// key, or the figures of `parse_card`), memory, context and address_space (bytes, or with the
// suffix KiB, MiB, GiB, TiB), mode (eager, adversarial, clock), seed, turn, polls, max_pending,
// program (microseconds, or x and the factor), backing (0, 1), sharing. Returns one sentence about
// the first mistake, or an empty text. After a mistake `config` is unchanged.
std::string parse_config(std::string_view text, MachineConfig& config);

// The defaults, overridden by the environment variables FERRO_SIM_DEVICES, _CARD, _MEMORY,
// _ADDRESS_SPACE, _MODE, _SEED, _TURN, _MAX_PENDING, _PROGRAM and _BACKING. A mistake is reported on
// stderr and its variable ignored.
MachineConfig config_from_environment();

}  // namespace ferro::sim
