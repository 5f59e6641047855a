// What machine is simulated: cards, memory, time.
#pragma once

#include "sim/settings/card.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ferro::sim {

// Addresses of a process on x86-64: what the host and all its devices have together. An H200 gave
// 823 reservations of 159 GiB, then 187 of 1 GiB, then none.
inline constexpr std::size_t kProcessAddressBytes = std::size_t{1} << 47;

enum class TimeMode : std::uint8_t {
  kEager,        // an operation is complete when its call returns
  kAdversarial,  // operations stay queued; a seeded scheduler runs them late and in any legal order
  kClock,        // operations have durations, calls have costs, and a virtual clock decides
};

// By the system's clock of the calling thread, in microseconds. Waiting takes none.
double thread_processor_time();

struct MachineConfig {
  int devices = 1;
  const Card* card = find_card("h100");
  // What `card` points to where the program gave the figures.
  std::shared_ptr<const Card> own_card;
  // 0: the card's. Given: the device has exactly this, and contexts take nothing of it unless
  // `own_context_bytes` says what.
  std::size_t memory_bytes = 0;
  std::optional<std::size_t> own_context_bytes;
  // The most addresses that all devices together may reserve. With the default the kernel refuses
  // first, because the host has some too.
  std::size_t address_space_bytes = kProcessAddressBytes;
  TimeMode mode = TimeMode::kEager;
  std::uint64_t seed = 1;
  // Adversarial: the share of API calls in which a ready operation gets its turn.
  double turn_probability = 0.05;
  // Adversarial: more queued operations than this and the submitting call runs some, as a full
  // launch queue blocks the host on a GPU.
  std::size_t max_pending = 8192;
  // Clock: what the program itself takes, in microseconds, for each kernel, copy, fill or graph
  // that it submits. With the launch's own 3 this makes the 10 that an operation of PyTorch takes.
  double program_microseconds = 7;
  // Clock: unless 0, what the program takes instead, for whatever it does: so many times the
  // processor time that a thread has taken since its last call of the driver.
  double program_factor = 0;
  // Processor time of the calling thread, in microseconds, for that factor.
  double (*processor_time)() = thread_processor_time;
  // Which processes take memory of the same cards. Empty: this one alone. "new": those that it tells.
  // Else the path that another process tells; where it leads to nothing any more it means "new".
  std::string sharing;
  // False: no bytes behind the pages. Copies check their addresses; device reads give zeros.
  bool backing = true;

  std::size_t total_bytes() const { return memory_bytes != 0 ? memory_bytes : card->memory_bytes; }
  std::size_t context_bytes() const {
    return own_context_bytes.value_or(memory_bytes != 0 ? 0 : card->context_bytes);
  }
};

// Reads "key=value" pairs separated by commas, semicolons or blanks into `config`:
// devices, card (a key, or the figures of `parse_card`), memory, context and address_space (bytes, or
// with the suffix KiB, MiB, GiB, TiB), mode (eager, adversarial, clock), seed, turn, max_pending,
// program (microseconds, or x and the factor), backing (0, 1), sharing.
// Returns one sentence about the first mistake, else nothing; on a mistake `config` is unchanged.
std::string parse_config(std::string_view text, MachineConfig& config);

// The defaults, overridden by the environment variables FERRO_SIM_DEVICES, _CARD, _MEMORY,
// _ADDRESS_SPACE, _MODE, _SEED, _TURN, _MAX_PENDING, _PROGRAM and _BACKING. A mistake is reported on
// stderr and its variable ignored.
MachineConfig config_from_environment();

}  // namespace ferro::sim
