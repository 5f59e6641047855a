"""Plants leaks, and code that looks like one; prints the findings as JSON."""

import json
import random
import sys

import torch

import ferro_alloc

if sys.argv[1] == "ferro_alloc":
    ferro_alloc.install()

kept, cache, sawtooth, warm = [], [], [], []


def forget_a_tensor():
    kept.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))


def fill_the_cache():
    with ferro_alloc.tag("kv store"):
        cache.append(torch.empty(5 << 20, dtype=torch.uint8, device="cuda"))


def grow_and_shrink(step):
    if step % 4 == 3:
        sawtooth.clear()
    sawtooth.append(torch.empty(7 << 20, dtype=torch.uint8, device="cuda"))


def warm_up(step):
    if step < 3:
        warm.append(torch.empty(9 << 20, dtype=torch.uint8, device="cuda"))


try:
    ferro_alloc.leaks()
except ferro_alloc.FerroError as error:
    assert "_record_memory_history" in str(error)
else:
    raise AssertionError("leaks() began without a history")

torch.cuda.init()
torch.cuda.memory._record_memory_history(context="state", stacks="python")
random.seed(1)
unknown = ferro_alloc.leaks()
declared = ferro_alloc.leaks(declared=["fill_the_cache"])
by_tag = ferro_alloc.leaks(declared=["kv store"])
assert declared.found() == []
for step in range(12):
    forget_a_tensor()
    fill_the_cache()
    grow_and_shrink(step)
    warm_up(step)
    activations = [torch.empty(random.randrange(1 << 24), device="cuda") for _ in range(3)]
    del activations
    unknown.mark()
    declared.mark()
    by_tag.mark()


def shown(watch):
    return [
        (leak.line.split("/")[-1], leak.grew_bytes, leak.blocks_at_marks[-1], leak.tag)
        for leak in watch.found()
    ]


print(json.dumps([shown(declared), shown(unknown), shown(by_tag)]))
