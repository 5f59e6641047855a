"""Graphs of one pool that is in no group, by the order in which they may replay (graph_order)."""

import gc
import random

from tests.python.feature_checks import MIB, check, check_invariants, filled, finish, take, words

import torch

from ferro_alloc import graphs


class Step:
    """A graph whose scratch is large compared with its result, which lies among small scratch."""

    def __init__(self, size, pool):
        self.source = filled(4096, size)
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), pool=pool):
            small = [take(4096) for _ in range(size)]
            large = take(8 * MIB)
            for scratch in (*small, large):
                scratch.view(torch.int32)[:1024].copy_(self.source)
            del small, scratch
            self.result = large[:4096].clone()
            del large
        self.graph = graph

    def put(self, tag):
        self.source.copy_(filled(4096, tag))

    def is_right(self, tag):
        return torch.equal(self.result.view(torch.int32).cpu(), words(tag, 4096))


def reserved():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def replay_in_random_order(steps, rounds=60):
    """Whether each result is what its own graph wrote last, after each replay."""
    draw = random.Random(2)
    tags = {}
    for tag in range(rounds):
        step = draw.choice(steps)
        step.put(tag)
        step.graph.replay()
        tags[step] = tag
        if not all(known.is_right(value) for known, value in tags.items()):
            return False
    return True


@check
def four_graphs_of_a_pool():
    before = reserved()
    pool = torch.cuda.graph_pool_handle()
    steps = [Step(size, pool) for size in (6, 3, 8, 1)]
    grown = reserved() - before
    right = replay_in_random_order(steps)
    check_invariants()
    del steps
    gc.collect()
    return [right, grown <= 14 * MIB, reserved() - before]


@check
def a_pool_with_checkpoints():
    pool = torch.cuda.graph_pool_handle()
    steps = [Step(size, pool) for size in (6, 3)]
    state = torch._C._cuda_getCheckpointState(0, pool)
    steps.append(Step(8, pool))
    check_invariants()
    return [state is not None, replay_in_random_order(steps[:2])]


@check
def a_pool_that_joins_a_group_later():
    pool = torch.cuda.graph_pool_handle()
    steps = [Step(size, pool) for size in (6, 3)]
    graphs.exclusive(pool)
    steps += [Step(size, pool) for size in (8, 1)]
    check_invariants()
    return replay_in_random_order(steps[2:])


finish()
