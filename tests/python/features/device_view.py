"""The typed view of a device, checked against PyTorch's statistics."""

import json

import torch

import ferro_alloc
from ferro_alloc import FerroError

MIB = 1 << 20
seen = {}


def refusal(call):
    try:
        call()
    except FerroError as error:
        return str(error)
    return ""


seen["before"] = refusal(ferro_alloc.device)
ferro_alloc.install()
seen["initialised by install"] = torch.cuda.is_initialized()
view = ferro_alloc.device()
assert view == ferro_alloc.device(0)
seen["wrong index"] = refusal(lambda: ferro_alloc.device(7))
seen["no index"] = refusal(lambda: ferro_alloc.device(True))
seen["no size"] = refusal(lambda: view.round_size(-1))
seen["empty"] = list(vars(view.numbers()).values())

seen["round"] = [view.round_size(size) for size in (0, 1, 512, 513, 5000)]
seen["forecast"] = [view.bytes_from_driver(size) // MIB for size in (0, 1, 3 * MIB)]
kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
del kept[1]
again = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
del again
numbers = view.numbers()
seen["numbers"] = [
    numbers.allocated_bytes == torch.cuda.memory_allocated() == 9 * MIB,
    numbers.peak_allocated_bytes == torch.cuda.max_memory_allocated() == 12 * MIB,
    numbers.reserved_bytes == torch.cuda.memory_reserved() == 12 * MIB,
    numbers.cached_bytes == 3 * MIB,
    (numbers.blocks, numbers.free_blocks, numbers.hits, numbers.misses),
]
seen["one by one"] = all(getattr(view, name) == value for name, value in vars(numbers).items())
seen["forecast of what is there"] = view.bytes_from_driver(3 * MIB)
with torch.cuda.stream(torch.cuda.Stream()):
    # A page of an idle stream helps.
    seen["forecast on another stream"] = view.bytes_from_driver(3 * MIB) // MIB
view.reset_peak()
seen["peak"] = view.peak_allocated_bytes == torch.cuda.max_memory_allocated() == 9 * MIB
del kept
view.empty_cache()
seen["emptied"] = view.reserved_bytes
seen["moved"] = ferro_alloc.status().devices[0].pages_moved
ferro_alloc.uninstall()
seen["after"] = refusal(lambda: view.allocated_bytes)
print(json.dumps(seen))
