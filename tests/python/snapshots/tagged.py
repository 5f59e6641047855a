"""Tags: nested, as decorators, of threads, before CUDA and before `install()`. Prints JSON."""

import json
import sys
import threading

import torch

import ferro_alloc
from ferro_alloc import tag

OURS = sys.argv[1] == "ferro_alloc"
MIB = 1 << 20
kept = {}


def keep(name, mib):
    kept[name] = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def live():
    return dict(ferro_alloc.status().devices[0].tags) if OURS else {}


@tag("decorated")
def decorated(depth):
    keep(f"decorated {depth}", 2)
    if depth:
        decorated(depth - 1)


with tag("weights"):
    if OURS:
        ferro_alloc.install()
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context="state", stacks="python")
    keep("weights", 20)
    with tag("inner"):
        keep("inner", 4)
        try:
            with tag("failed"):
                raise KeyError
        except KeyError:
            keep("inner again", 4)
    keep("more weights", 20)
    other = threading.Thread(target=keep, args=("of a thread", 6))
    other.start()
    other.join()
keep("untagged", 8)
decorated(1)
with tag("backward"):
    leaf = torch.ones(3 * MIB // 4, device="cuda", requires_grad=True)
    (leaf * 2).sum().backward()

before = live()
if OURS:
    # The block is freed elsewhere and in another tag, and no request reuses it.
    with tag("other"):
        del kept["weights"]
    assert str(ferro_alloc.status()).count("by tag: ") == 1
after = live()
# A request without a tag reuses the memory.
keep("again", 20)

tags = {
    entry["addr"]: entry["user_metadata"]
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]
    if entry["action"] == "alloc"
}
recorded = {name: tags[tensor.data_ptr()] for name, tensor in kept.items()}
recorded["gradient"] = tags[leaf.grad.data_ptr()]
ferro_alloc.report(sys.argv[2])
refused = []
for wrong in ("", "two\nlines", 81 * "x", None):
    try:
        tag(wrong)
    except ferro_alloc.FerroError as error:
        refused.append("expected a name of one line" in str(error))

seen = None
if OURS:
    assert live() == after
    try:
        keep("too much", 1 << 20)
    except torch.OutOfMemoryError as error:
        facts = ferro_alloc.explain(error)
        seen = {"tags": [[t.name, t.live_bytes, t.blocks] for t in facts.tags], "text": str(error)}
    # Tags are counted after the history has ended too.
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept["inner"]
    assert live() == {**after, "inner": 4 * MIB}
print(
    json.dumps(
        {
            "before": before,
            "after": after,
            "recorded": recorded,
            "refused": refused,
            "out_of_memory": seen,
        }
    )
)
