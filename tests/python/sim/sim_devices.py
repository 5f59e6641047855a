"""Two devices: memory of each, copies between them, a stream of one waiting for the other."""

import json

import torch

from ferro_alloc import sim

assert torch.cuda.device_count() == 2
assert torch.cuda.can_device_access_peer(0, 1)
x = torch.arange(100_000, dtype=torch.int32).pin_memory().to("cuda:0", non_blocking=True)
y = x.to("cuda:1")
with torch.cuda.device(1):
    z = torch.empty(100_000, dtype=torch.int32, device="cuda")
    assert z.device.index == 1
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record()
    stream.wait_event(event)
    with torch.cuda.stream(stream):
        z.copy_(y)
    stream.synchronize()
equal = torch.equal(z.cpu(), torch.arange(100_000, dtype=torch.int32))
allocated = [torch.cuda.memory_allocated(i) for i in range(2)]
print(
    json.dumps(
        {"equal": equal, "allocated": allocated, "used": [m.allocated for m in sim.memory()]}
    )
)
