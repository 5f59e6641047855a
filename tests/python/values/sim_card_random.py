"""Random numbers on the simulated GPU, compared with those of a card in `card_random.json`.

Its cases are an expression, the seed, the number of draws before it, the generator's offset after
it, and the CRC-32 of the bytes of a contiguous host copy; and elements by their places, where the
device's functions may differ from the host's in the last bits. Prints the differences, and which
numbers the program is told to be others than a card's.
"""

import json
import sys
import zlib
from pathlib import Path

import torch

from ferro_alloc import sim

# The most that an element may differ: absolute, and relative to it.
ROUNDED = {
    torch.float64: (1e-15, 1e-15),
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-6, 2**-10),
    torch.bfloat16: (1e-6, 2**-7),
    torch.int32: (0, 0),
    torch.int64: (1, 0),  # neighbours among 50,000 categories
}


def reads():
    return sum(read.count for read in sim.uncomputed_reads())


def same_bytes(host, crc):
    return zlib.crc32(host.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) == crc


def close(host, samples):
    absolute, relative = ROUNDED[host.dtype]
    flat = host.flatten()
    return all(
        abs(flat[int(place)].item() - number) <= absolute + relative * abs(number)
        for place, number in samples.items()
    )


torch.cuda.init()
generator = torch.cuda.default_generators[0]
wrong, unsure = [], []
cases = json.loads(Path(sys.argv[1]).read_text())["cases"]
for expression, seed, skipped, offset, crc, *samples in cases:
    torch.manual_seed(seed)
    for _ in range(skipped):
        torch.rand(5, device="cuda")
    host_state = torch.get_rng_state()
    drawn = eval(expression)
    before = reads()
    host = drawn.cpu()
    if reads() > before:
        unsure.append(expression)
    elif samples and not drawn.is_floating_point() and not same_bytes(host, crc):
        wrong.append(f"{expression}: some integers are others than the card's")
    if generator.get_offset() != offset:
        wrong.append(f"{expression}: offset {generator.get_offset()}, not {offset}")
    if not (close(host, *samples) if samples else same_bytes(host, crc)):
        wrong.append(expression)
    if not torch.equal(host_state, torch.get_rng_state()):
        wrong.append(f"{expression}: the host's generator has changed")
print(json.dumps({"cases": len(cases), "wrong": wrong, "unsure": unsure}))
