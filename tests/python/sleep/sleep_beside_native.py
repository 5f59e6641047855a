"""A strict sleep fails for used memory of the previous allocator, but not for its cache."""

import json

import torch

import ferro_alloc

native = torch.zeros(4 << 20, device="cuda")
cached = torch.zeros(8 << 20, device="cuda")
del cached
ferro_alloc.install()
cached = torch.zeros(8 << 20, device="cuda")
del cached
ours = torch.ones(1 << 20, device="cuda")
seen = {"refused": False}
try:
    ferro_alloc.sleep(strict=True)
except RuntimeError as error:
    seen["refused"] = "PyTorch's own allocator" in str(error)
seen["asleep"] = ferro_alloc.asleep().device_bytes
seen["staying"] = list(ferro_alloc.sleep().staying)
ferro_alloc.wake()
cached = native
del native, cached
seen["bytes"] = ferro_alloc.sleep(strict=True).device_bytes
ferro_alloc.wake()
seen["kept"] = bool((ours == 1).all())
print(json.dumps(seen))
