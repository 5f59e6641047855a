#include "sim/libraries/cuda/cards.h"

#include "sim/machine/machine.h"
#include "sim/settings/device_attributes.h"

#include <algorithm>
#include <unistd.h>

using ferro::sim::Machine;

#define FERRO_SIM_CARDS extern "C" __attribute__((visibility("default")))

FERRO_SIM_CARDS int ferro_sim_card_count() {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().device_count();
}

FERRO_SIM_CARDS void ferro_sim_card(int index, FerroSimCard* out) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  const ferro::sim::Card& card = *machine.config().card;
  const auto& memory = machine.device(index).memory;
  *out = {};
  card.name.copy(out->name, sizeof(out->name) - 1);
  const auto uuid = ferro::sim::device_uuid(index);
  std::copy(uuid.begin(), uuid.end(), out->uuid);
  out->pci_bus = ferro::sim::pci_bus(index);
  out->compute_major = card.compute_major;
  out->compute_minor = card.compute_minor;
  out->has_nvlink = card.speed.peer_link > card.speed.host_link ? 1 : 0;
  out->total_bytes = memory.capacity();
  out->used_bytes = std::min(memory.allocated(), memory.capacity());
}

FERRO_SIM_CARDS std::size_t ferro_sim_card_holders(int index, FerroSimHolder* out,
                                                   std::size_t size) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  std::vector<ferro::sim::SharedCapacity::Holder> holders;
  if (machine.sharing() != nullptr) {
    holders = machine.sharing()->holders(index);
  } else if (const auto own = machine.device(index).memory.own_allocated(); own > 0) {
    holders.push_back({getpid(), own});
  }
  for (std::size_t i = 0; i < std::min(size, holders.size()); ++i) {
    out[i] = {holders[i].process, holders[i].bytes};
  }
  return holders.size();
}
