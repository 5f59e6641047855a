"""The cards that a process sees with CUDA_VISIBLE_DEVICES=ARGUMENT, set before CUDA is used.

Prints the number of devices by torch before and after CUDA's initialization and by the driver, and
the cards of the devices by their PCI buses.
"""

import ctypes
import json
import os
import sys

import torch

FIRST_BUS = 0x10
NO_DEVICE = 100

os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
counted = torch.cuda.device_count()
of_runtime = torch._C._cuda_getDeviceCount() if counted else 0
driver = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int()
ready = driver.cuInit(0)
driver.cuDeviceGetCount(ctypes.byref(number))
available = torch.cuda.is_available()
cards = []
for device in range(number.value):
    torch.ones(4, device=f"cuda:{device}")
    cards.append(torch.cuda.get_device_properties(device).pci_bus_id - FIRST_BUS)
later = torch.cuda.device_count()
os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # too late
driver.cuInit(0)
again = ctypes.c_int()
driver.cuDeviceGetCount(ctypes.byref(again))
assert ready == (0 if cards else NO_DEVICE), ready
assert {counted, of_runtime, later} == {len(cards)}, (counted, of_runtime, later)
assert again.value == number.value
assert available == bool(cards)
print(json.dumps(cards))
