"""Free memory beside memory that sleeps: what returns to the driver. Prints JSON.

The settings keep 64 MiB of free memory (`idle_mb`).
"""

import json

import torch

import ferro_alloc
from ferro_alloc import _C, tag
from ferro_alloc.memory_saver import torch_memory_saver as saver

MIB = 1 << 20
ferro_alloc.install()
seen = {}


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def on_device():
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def holds(tensor, value):
    return bool((tensor == value).all())


def two(pool):
    """Two tensors in the pool, of 100 and 60 MiB."""
    with tag("a"), torch.cuda.use_mem_pool(pool):
        return filled(100, 1), filled(60, 2)


torch.zeros(1, device="cuda")

# Of the default pool, also what the settings keep.
kept, freed = filled(60, 2), filled(100, 1)
del freed
ferro_alloc.sleep()
seen["default pool"] = on_device()
ferro_alloc.wake()
good = [holds(kept, 2)]
del kept
torch.cuda.empty_cache()

# Of a pool that is held. With tags it stays, because the pool may use it next.
pool = torch.cuda.MemPool()
freed, kept = two(pool)
del freed
ferro_alloc.sleep("a")
seen["held pool, by tag"] = on_device() >= 100
ferro_alloc.wake()
ferro_alloc.sleep()
seen["held pool"] = on_device()
ferro_alloc.wake()
good.append(holds(kept, 2))

# It is taken before wake() has too little memory.
with torch.cuda.use_mem_pool(pool):
    freed = filled(200, 3)
ferro_alloc.sleep("a")
del freed
other = filled(500 - on_device(), 4)
ferro_alloc.wake()
good += [holds(kept, 2), holds(other, 4)]
del kept, other, pool
torch.cuda.empty_cache()

# Of a pool that was deleted before.
pool = torch.cuda.MemPool()
freed, kept = two(pool)
with tag("a"):
    cached = filled(20, 5)
del pool, freed, cached
before = on_device()
ferro_alloc.sleep("a")
seen["pool that is gone, by tag"] = before - on_device()
ferro_alloc.wake()
good.append(holds(kept, 2))
del kept
torch.cuda.empty_cache()

# Of a region that was paused before.
with saver.region("r", enable_cpu_backup=True):
    freed, kept = filled(100, 1), filled(60, 2)
saver.pause("r")
saver.resume("r")
del freed
before = on_device()
saver.pause("r")
seen["region"] = before - on_device()
saver.resume("r")
good.append(holds(kept, 2))

_C.check_invariants(0)
seen["good"] = all(good)
print(json.dumps(seen))
