#include "sim/libraries/cuda/cards.h"

#include "sim/machine/machine.h"
#include "sim/settings/device_attributes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unistd.h>

using ferro::sim::Machine;

#define FERRO_SIM_CARDS extern "C" __attribute__((visibility("default")))

FERRO_SIM_CARDS int ferro_sim_card_count() {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().config().devices;
}

FERRO_SIM_CARDS void ferro_sim_card(int index, FerroSimCard* out) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  const ferro::sim::Card& card = *machine.config().card;
  *out = {};
  card.name.copy(out->name, sizeof(out->name) - 1);
  ferro::sim::device_uuid_text(index).copy(out->uuid, sizeof(out->uuid) - 1);
  out->pci_bus = ferro::sim::pci_bus(index);
  out->compute_major = card.compute_major;
  out->compute_minor = card.compute_minor;
  out->has_nvlink = card.speed.peer_link > card.speed.host_link ? 1 : 0;
  const std::optional<int> device = machine.device_of(index);
  std::size_t used = 0;
  if (machine.sharing() != nullptr) {
    used = machine.sharing()->allocated(index);
  } else if (device) {
    used = machine.device(*device).memory.own_allocated();
  }
  out->total_bytes = machine.config().total_bytes();
  out->used_bytes = std::min(used, machine.config().total_bytes());
}

FERRO_SIM_CARDS std::size_t ferro_sim_card_holders(int index, FerroSimHolder* out,
                                                   std::size_t size) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  std::vector<ferro::sim::SharedCapacity::Holder> holders;
  if (machine.sharing() != nullptr) {
    holders = machine.sharing()->holders(index);
  } else if (const std::optional<int> device = machine.device_of(index)) {
    if (const auto own = machine.device(*device).memory.own_allocated(); own > 0) {
      holders.push_back({getpid(), own});
    }
  }
  for (std::size_t i = 0; i < std::min(size, holders.size()); ++i) {
    out[i] = {holders[i].process, holders[i].bytes};
  }
  return holders.size();
}
