"""Trees of torch.compile in exclusive groups: memory, paths, joining, leaving, and pools."""

import gc
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

from tests.python.feature_checks import (
    MIB,
    check,
    check_invariants,
    copied_through,
    error_of,
    filled,
    finish,
    take,
    words,
)

import torch
import torch._inductor.config

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard

SIZE = 2 * MIB
torch._inductor.config.triton.slow_path_cudagraph_asserts = True
torch._inductor.config.triton.fast_path_cudagraph_asserts = True


def copy_each(targets, sources):
    """The simulated GPU computes no kernel of PyTorch that copies several tensors at once."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


torch._foreach_copy_ = copy_each


def through_scratch(count):
    """A copy that uses `count` times the memory of its argument as scratch."""

    def function(x):
        kept = [x.clone()]
        for _ in range(count - 1):
            kept.append(kept[-1].clone())
        result = kept[-1]
        for target in reversed(kept[:-1]):
            result = torch.ops.aten.copy(target, result)
        return result

    return function


class Tree:
    """Two compiled functions that follow one another in two ways, so the tree forks."""

    def __init__(self):
        self.first, self.second = (
            torch.compile(through_scratch(n), backend="cudagraphs", dynamic=False) for n in (8, 5)
        )

    def is_right(self, tag, between=lambda: None):
        torch.compiler.cudagraph_mark_step_begin()
        x = filled(SIZE, tag).view(torch.int32)
        y = self.first(x)
        between()
        z = (self.first if tag % 2 else self.second)(y)
        between()
        del x
        return all(torch.equal(tensor.cpu(), words(tag, SIZE)) for tensor in (y, z))

    def is_right_in_all_ways(self):
        right = [self.is_right(tag) for tag in range(6)]
        return all(right)


class Step:
    """A graph that copies `source` through scratch of so many MiB into a result."""

    def __init__(self, size):
        self.source = filled(SIZE, size)
        with CaptureGuard() as guard:
            scratch = (take(SIZE) for _ in range(size * MIB // SIZE))
            self.result = copied_through(self.source, [*scratch])
        self.graph = guard.graph
        self.stream = torch.cuda.Stream()
        self.tag = None

    def launch(self, tag):
        """Launches on a stream that waits for no other stream."""
        self.tag = tag
        with torch.cuda.stream(self.stream):
            self.source.copy_(filled(SIZE, tag))
            self.graph.cuda_graph.replay()

    def is_right(self):
        self.stream.synchronize()
        return self.tag is None or torch.equal(
            self.result.view(torch.int32).cpu(), words(self.tag, SIZE)
        )


def reserved():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def reset():
    torch.compiler.reset()
    gc.collect()


def right_in_random_order(tree, steps, rounds=24):
    draw = random.Random(rounds)
    tags = itertools.count(100)

    def launch_some():
        for step in draw.sample(steps, draw.randrange(len(steps) + 1)):
            step.launch(next(tags))

    for _ in range(rounds):
        launch_some()
        if not tree.is_right(draw.randrange(1000), launch_some):
            return False
        if not all(step.is_right() for step in steps):
            return False
    check_invariants()
    return True


@check
def trees_that_exist_share_with_decode_graphs():
    before = reserved()
    tree, steps = Tree(), [Step(size) for size in (24, 16)]
    seen = [tree.is_right_in_all_ways()]
    apart = reserved() - before
    group = graphs.exclusive(graphs.compiled_pool(), *(step.graph for step in steps))
    together = reserved() - before
    seen += [right_in_random_order(tree, steps)]
    sizes = group.sizes()
    seen += [together <= apart - 28 * MIB, sizes.shared_bytes <= 24 * MIB]
    del tree, steps, group
    reset()
    return [*seen, reserved() - before]


@check
def trees_that_are_recorded_in_a_group():
    before = reserved()
    steps = [Step(size) for size in (24, 16)]
    group = graphs.exclusive(*(step.graph for step in steps))
    tree = Tree()
    seen = [tree.is_right(0)]  # runs that warm up
    group.join(graphs.compiled_pool())
    at_first = group.sizes()
    seen += [tree.is_right_in_all_ways(), right_in_random_order(tree, steps)]
    sizes = group.sizes()
    seen += [
        sizes.shared_bytes <= 26 * MIB,
        sizes.scratch_bytes >= at_first.scratch_bytes + 2 * 14 * MIB,  # of two paths at least
    ]
    del tree, steps, group
    reset()
    return [*seen, reserved() - before]


@check
def trees_whose_first_graph_borrowed():
    """The allocator cannot know that the pool is a tree's before the tree asks for a checkpoint."""
    before = reserved()
    step, tree = Step(24), Tree()
    seen = [tree.is_right(0)]
    manager = torch._inductor.cudagraph_trees.get_manager(0)
    group = graphs.exclusive(step.graph, manager.cuda_graphs_thread_pool)
    seen += [tree.is_right_in_all_ways(), right_in_random_order(tree, [step])]
    seen += [group.sizes().shared_bytes <= 26 * MIB]
    del step, tree, group, manager
    reset()
    return [*seen, reserved() - before]


@check
def trees_leave_and_join_again():
    before = reserved()
    tree, steps = Tree(), [Step(24)]
    pool_after = [tree.is_right_in_all_ways()]
    apart = reserved() - before
    pool = graphs.compiled_pool()
    group = graphs.exclusive(pool, steps[0].graph)
    together = reserved() - before
    group.leave(pool)
    left = reserved() - before
    seen = [*pool_after, together < left <= apart, right_in_random_order(tree, [])]
    third = torch.compile(through_scratch(3), backend="cudagraphs", dynamic=False)
    for tag in (1, 2, 3):
        torch.compiler.cudagraph_mark_step_begin()
        y = third(filled(SIZE, tag).view(torch.int32))
        seen.append(torch.equal(y.cpu(), words(tag, SIZE)))
    del y
    group.join(pool)
    seen += [right_in_random_order(tree, steps), reserved() - before < left]
    del tree, steps, group, third
    reset()
    return [*seen, reserved() - before]


@check
def a_new_tree_is_another_pool():
    tree = Tree()
    seen = [tree.is_right(0)]
    first = graphs.compiled_pool("cuda:0")
    seen.append(first == graphs.compiled_pool())
    reset()
    tree = Tree()
    seen += [tree.is_right(0), graphs.compiled_pool(0) != first]
    del tree
    reset()
    return seen


@check
def unknown_pools_are_refused():
    reset()
    errors = [
        error_of(graphs.compiled_pool),
        error_of(lambda: graphs.compiled_pool(torch.cuda.device_count() - 1)),
        error_of(lambda: graphs.compiled_pool("cpu")),
    ]
    tree = Tree()
    right = tree.is_right(0)
    with ThreadPoolExecutor(1) as other:
        errors.append(other.submit(error_of, graphs.compiled_pool).result())
    del tree
    reset()
    return [sorted({kind for kind, _ in errors}), right, "reduce-overhead" in errors[3][1]]


finish()
