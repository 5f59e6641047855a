"""Allocates with the settings of the environment, under native and with switches to ferro_alloc.

Each run is a fork of this process, which has loaded torch with the settings. Prints whether the
forks succeeded.
"""

import json
import os
import sys

import torch

import ferro_alloc


def allocate(switches):
    if switches:
        ferro_alloc.install()
        torch.empty(1, device="cuda")
        ferro_alloc.uninstall()
    torch.empty(1, device="cuda")
    if switches:
        ferro_alloc.install()
        torch.empty(1, device="cuda")


ended_well = {}
for name, switches in (("native", False), ("ferro", True)):
    pid = os.fork()
    if pid == 0:
        allocate(switches)
        sys.exit()
    ended_well[name] = os.waitpid(pid, 0)[1] == 0
print(json.dumps(ended_well))
