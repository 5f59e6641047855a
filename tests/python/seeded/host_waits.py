"""Runs a program on the simulated GPU, then prints how often it called what makes the host wait.

    host_waits.py PROGRAM ARGUMENT...

The last line maps the waits of the driver to their numbers, from the start of the program.
"""

import json
import runpy
import sys
from pathlib import Path

from ferro_alloc import sim

WAITS = (
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuStreamSynchronize",
)
"""Frees wait for the device. The allocator also frees host memory in order to wait."""

sys.argv = [str(Path(__file__).with_name(sys.argv[1])), *sys.argv[2:]]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    counters = sim.counters()
    print(json.dumps({name: counters[name].calls for name in WAITS if name in counters}))
