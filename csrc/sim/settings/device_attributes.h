// The attributes of a simulated card.
#pragma once

#include "sim/settings/config.h"

#include <cuda.h>

#include <array>
#include <string>

namespace ferro::sim {

// The figure that card `number` reports, which is of this kind; 0 for attributes of features that are not simulated.
int device_attribute(const MachineConfig& config, CUdevice_attribute attribute, int number);

// What tells cards of one machine apart.
std::array<unsigned char, 16> device_uuid(int card);
std::string device_uuid_text(int card);  // GPU-...
int pci_bus(int card);

}  // namespace ferro::sim
