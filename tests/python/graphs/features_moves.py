"""Requests of a capture that are served from scattered pages of its own pool."""

import gc

from tests.python.feature_checks import (
    FERRO,
    MIB,
    check,
    check_invariants,
    filled,
    finish,
    take,
    words,
)

import torch

from ferro_alloc.graphs import CaptureGuard

HOLES = 8
LARGE = HOLES * 2 * MIB


class Step:
    """A graph that keeps the memory between the holes, and copies its source through all of
    them."""

    def __init__(self, pool=None, holes=HOLES):
        self.source = filled(LARGE, 1).view(torch.uint8)
        with CaptureGuard(pool) as guard:
            dying, self.kept = [], []
            for i in range(holes):
                dying.append(take(2 * MIB))
                dying[-1].copy_(self.source[i * 2 * MIB :][: 2 * MIB])
                self.kept.append(dying[-1].clone())
            del dying
            large = take(LARGE)
            large.copy_(self.source)
            self.result = large[-2 * MIB :].clone()
            del large
        self.graph = guard.graph

    def replay(self, tag):
        self.source.copy_(filled(LARGE, tag).view(torch.uint8))
        self.graph.launch()

    def is_right(self, tag):
        expected = words(tag, LARGE).view(torch.uint8).split(2 * MIB)
        kept = [*zip(self.kept, expected, strict=False), (self.result, expected[-1])]
        return all(torch.equal(tensor.cpu(), part) for tensor, part in kept)


def reserved():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def grown(make):
    """The result of `make`, and how many MiB it took in addition to its sources."""
    before = reserved()
    made = make()
    sources = sum(step.source.nbytes for step in made)
    return made, (reserved() - before - sources) / MIB


@check
def one_graph():
    before = reserved()
    (step,), took = grown(lambda: [Step()])
    right = []
    for tag in (3, 7, 11):
        step.replay(tag)
        right.append(step.is_right(tag))
    check_invariants()
    sizes = step.graph.sizes() if FERRO else None
    private = took * MIB if sizes is None else sizes.private_bytes + sizes.shared_bytes
    del step, sizes
    return [right, took, private <= took * MIB, reserved() - before]


@check
def graphs_of_a_pool():
    """The graphs are replayed in the order of their captures."""
    pool = torch.cuda.graph_pool_handle()
    steps, took = grown(lambda: [Step(pool), Step(pool, holes=3), Step(pool)])
    right = []
    for start in (2, 20):
        for tag, step in enumerate(steps, start):
            step.replay(tag)
            right.append(step.is_right(tag))
    check_invariants()
    return [right, took]


@check
def a_capture_that_fails():
    before = reserved()
    pool = torch.cuda.graph_pool_handle()
    step = Step(pool)
    held = reserved()
    try:
        with CaptureGuard(pool):
            large = take(LARGE)
            raise KeyError
    except KeyError:
        del large
    check_invariants()
    step.replay(5)
    same = reserved() == held
    right = step.is_right(5)
    del step
    return [right, same, reserved() - before]


@check
def a_stream_that_joins_the_capture():
    source = filled(LARGE, 4).view(torch.uint8)
    stream = torch.cuda.Stream()
    before = reserved()
    with CaptureGuard() as guard:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            dying = [take(2 * MIB) for _ in range(2 * HOLES)]
            kept = dying[::2]
            del dying
            large = take(LARGE)
            large.copy_(source)
        torch.cuda.current_stream().wait_stream(stream)
    took = reserved() - before
    guard.graph.launch()
    right = torch.equal(large.view(torch.int32).cpu(), words(4, LARGE))
    return [right, len(kept), took / MIB]


finish()
