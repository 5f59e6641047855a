// The attributes of a simulated card.
#pragma once

#include "sim/settings/config.h"

#include <cuda.h>

#include <array>
#include <string>

namespace ferro::sim {

// The value that card `number` of the machine reports; 0 for attributes of features that are not
// simulated.
int device_attribute(const MachineConfig& config, CUdevice_attribute attribute, int number);

// These identify a card within a machine.
std::array<unsigned char, 16> device_uuid(int card);
std::string device_uuid_text(int card);  // GPU-...
int pci_bus(int card);

}  // namespace ferro::sim
