"""Tags of backward passes and of other threads. Prints JSON."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.checkpoint import checkpoint

import ferro_alloc
from ferro_alloc import carry_tag, tag

MIB = 1 << 20
ferro_alloc.install()
torch.cuda.init()
torch.cuda.memory._record_memory_history(context="state", stacks="python")


def live():
    found = {name: t.live_bytes // MIB for name, t in ferro_alloc.tags().items()}
    return {name: mib for name, mib in found.items() if mib}


def leaf(mib=4):
    return torch.ones(mib * MIB // 4, device="cuda", requires_grad=True)


class Kept(torch.autograd.Function):
    """Keeps memory that its backward pass requests."""

    kept = []  # noqa: RUF012
    threads = set()  # noqa: RUF012

    @staticmethod
    def forward(ctx, value):
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        Kept.threads.add(threading.get_ident())
        Kept.kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        with tag("within"):
            Kept.kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        Kept.kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        return gradient * 3


def kept():
    found = live()
    Kept.kept.clear()
    return found


seen = {}
x = leaf()

# The tag of the call of backward() wins over that of the forward code.
with tag("forward"):
    y = Kept.apply(x).sum()
with tag("call"):
    y.backward()
seen["call in a tag"] = kept()
x.grad = None

# Without such a tag, the forward code of each node decides.
with tag("first"):
    y = Kept.apply(x)
    with tag("second"):
        y = Kept.apply(y)
    y = Kept.apply(y)
y = Kept.apply(y).sum()
y.backward()
seen["forward code"] = kept()
x.grad = None

# The gradient is memory of the node that computed it.
with tag("layer"):
    y = (x * 2).sum()
y.backward()
seen["gradient"] = live()
x.grad = None
seen["nothing left"] = live()

# A thread of autograd keeps no tag of an earlier pass.
with tag("call"):
    Kept.apply(x).sum().backward()
x.grad = None
kept()
Kept.apply(x).sum().backward()
seen["next pass"] = kept()
x.grad = None
assert threading.get_ident() not in Kept.threads

# Recomputed activations belong to the code that they recompute.
with tag("block"):
    y = checkpoint(Kept.apply, x, use_reentrant=False).sum()
y.backward()
seen["checkpoint"] = kept()
x.grad = None

# Forward code of another thread, and a call of backward() there.
results = []


def forward():
    with tag("of a thread"):
        results.append(Kept.apply(x).sum())


def backward(y):
    with tag("call of a thread"):
        y.backward()


for step in (forward, lambda: results.pop().backward()):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
seen["forward code of a thread"] = kept()
x.grad = None
y = Kept.apply(x).sum()
thread = threading.Thread(target=backward, args=(y,))
thread.start()
thread.join()
seen["call of a thread"] = kept()
x.grad = None

# Threads that the program starts.
with ThreadPoolExecutor(1) as pool:
    make = torch.empty
    with tag("carried"):
        own = pool.submit(carry_tag(make), 2 * MIB, dtype=torch.uint8, device="cuda").result()
        none = pool.submit(make, 3 * MIB, dtype=torch.uint8, device="cuda").result()
        assert carry_tag(make)(MIB, dtype=torch.uint8, device="cuda").numel() == MIB
    later = pool.submit(make, 4 * MIB, dtype=torch.uint8, device="cuda").result()
seen["carried"] = live()
assert carry_tag(make) is make
del own, none, later

# After many changes of tags, the last ones are known.
with torch.no_grad():
    for _ in range(200_000):
        with tag("without nodes"):
            pass
with tag("old"):
    old = Kept.apply(x).sum()
for _ in range(70_000):
    with tag("many"):
        torch.zeros(1, requires_grad=True) * 2
with tag("new"):
    new = Kept.apply(x).sum()
new.backward()
seen["after many"] = kept()
x.grad = None
old.backward()
seen["too old"] = kept()
x.grad = None

trace = torch.cuda.memory._snapshot()["device_traces"][0]
seen["recorded"] = sorted({e["user_metadata"] for e in trace if e["action"] == "alloc"})
print(json.dumps(seen))
