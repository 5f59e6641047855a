"""Makes cuFFT's plans of library_plans.json on the simulated H200. Prints how many work areas are
equal to those of a GPU, and how many differ by less than a tenth of the data or less than 1 MiB.

A plan: complex (C), from real (R) or to real numbers (I); bytes of a complex number; whether
elements are apart; sizes; batch; bytes.
"""

import ctypes
import json
import math
from pathlib import Path

import torch

COMPLEX, REAL = {4: 6, 8: 4, 16: 5}, {4: 2, 8: 0, 16: 1}
MIB = 1 << 20

torch.ones(1, device="cuda")
cufft = ctypes.CDLL("libcufft.so.12")
integer = ctypes.c_longlong
answer = {"plans": 0, "equal": 0, "near": 0}
for kind, element, apart, sizes, batch, wanted in json.loads(
    Path(__file__).with_name("library_plans.json").read_text()
):
    plan, found = ctypes.c_int(), ctypes.c_size_t()
    cufft.cufftCreate(ctypes.byref(plan))
    embed = (integer * len(sizes))(*sizes) if apart else None
    layout = (embed, integer(2 if apart else 1), integer(1))
    given = REAL[element] if kind == "R" else COMPLEX[element]
    result = REAL[element] if kind == "I" else COMPLEX[element]
    status = cufft.cufftXtMakePlanMany(
        *(plan, len(sizes), (integer * len(sizes))(*sizes), *layout, given, *layout, result),
        *(integer(batch), ctypes.byref(found), COMPLEX[element]),
    )
    cufft.cufftDestroy(plan)
    if status != 0:
        continue
    answer["plans"] += 1
    answer["equal"] += found.value == wanted
    data = element * batch * math.prod(sizes)
    answer["near"] += abs(found.value - wanted) <= max(MIB, data / 10)
print(json.dumps(answer))
