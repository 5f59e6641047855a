// The attributes of a simulated card.
#pragma once

#include "sim/settings/config.h"

#include <cuda.h>

#include <array>

namespace ferro::sim {

// The figure a card of this kind reports; 0 for attributes of features that are not simulated.
int device_attribute(const MachineConfig& config, CUdevice_attribute attribute, int device);

// What tells devices of one machine apart.
std::array<unsigned char, 16> device_uuid(int device);
int pci_bus(int device);

}  // namespace ferro::sim
