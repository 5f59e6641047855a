"""Lending: eager work on the scratch of idle graphs, and launches that take it back.

With the argument "around" a graph is launched past PyTorch's Python while its scratch is lent.
"""

import contextlib
import gc
import random
import sys
import threading

from tests.python.feature_checks import (
    FERRO,
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

import ferro_alloc
from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard

OF_TORCH = torch.cuda.CUDAGraph.replay
RESULT = 2 * MIB
SCRATCH = 48 * MIB
EAGER = 100 * MIB
"""Of a device of 128 MiB: what is left beside scratch, and less than there is without it."""


class Step:
    """A graph that copies its source through scratch into a result."""

    def __init__(self, scratch=SCRATCH, pool=None, stream=None):
        self.source = filled(RESULT, 1)
        with CaptureGuard(pool, stream=stream) as guard:
            self.result = copied_through(self.source, take(scratch).view(-1, RESULT).unbind())
        self.graph = guard.graph

    def put(self, tag):
        self.tag = tag
        self.source.copy_(words(tag, RESULT))

    def is_right(self):
        return torch.equal(self.result.view(torch.int32).cpu(), words(self.tag, RESULT))


def replayed(steps):
    """With inputs of their own, in random order: are all results right?"""
    draw = random.Random(3)
    for step in draw.sample(steps, len(steps)):
        step.put(draw.randrange(1 << 20))
        step.graph.launch()
    return all(step.is_right() for step in steps)


def eager_work(size=EAGER, tag=5):
    """Eager work of so many bytes: was each of them right?"""
    data = filled(size, tag)
    return torch.equal(data.cpu(), words(tag, size))


def used():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def fails_without():
    """The same with a graph that does not lend."""
    step = Step()
    group = graphs.exclusive(step.graph) if FERRO else None
    kind, text = error_of(eager_work)
    right = replayed([step])
    del group
    return [kind, right, "graphs.lend" in text]


@check
def without_lending_eager_work_finds_no_memory():
    return fails_without()


if not FERRO:
    finish()
    sys.exit()

if sys.argv[2:] == ["around"]:
    # Python's own way is refused; past it the graph finds no memory.
    step = Step()
    group = graphs.lend(step.graph)
    held = take(EAGER)
    refused, _ = error_of(step.graph.launch)
    OF_TORCH(step.graph.cuda_graph)
    _, text = error_of(torch.cuda.synchronize)
    print(f'{{"refused": "{refused}", "is_illegal": {int("illegal" in text)}}}', flush=True)
    import os

    os._exit(0)  # nothing of the device can be used after that


@check
def eager_work_gets_the_scratch_of_idle_graphs():
    before = used()
    steps = [Step(), Step(SCRATCH // 2)]
    group = graphs.lend(*(step.graph for step in steps))
    seen = [group.lends, len(group.pools), replayed(steps), group.sizes().lent_bytes]
    held = used()
    for round_ in range(3):
        seen.append(eager_work(tag=round_))
        seen.append(group.sizes().lent_bytes >= SCRATCH - 2 * MIB)
        seen.append(all(step.is_right() for step in steps))
        check_invariants()
        seen.append(replayed(steps))
        seen.append([group.sizes().lent_bytes, used() - held])
    del steps
    graphs.lend(group, enabled=False)
    del group
    return [*seen, used() - before]


@check
def a_launch_that_is_refused_leaves_all_as_it_was():
    step = Step()
    other = Step(8 * MIB)
    seen = []
    for ordered in (False, True):
        group = graphs.exclusive(step.graph, other.graph, ordered=ordered)
        assert graphs.lend(group) is group
        assert replayed([step, other])
        held = filled(EAGER, 9)
        replays = step.graph.num_replays
        kept = step.tag
        for launch in (step.graph.launch, step.graph.cuda_graph.replay, other.graph.launch):
            try:
                launch()
            except graphs.LentScratchError as error:
                seen.append(0 < error.missing_bytes <= SCRATCH)
                seen.append(str(error.missing_bytes) in str(error))
        check_invariants()
        seen += [step.graph.num_replays - replays, kept == step.tag, step.is_right()]
        seen.append(torch.equal(held.cpu(), words(9, EAGER)))
        del held
        seen.append(replayed([step, other]))
        group.leave(step.graph, other.graph)
    return seen


@check
def free_memory_of_others_goes_before_a_launch_is_refused():
    step = Step()
    group = graphs.lend(step.graph)
    held = take(EAGER)
    del held  # cached, in a heap of another stream too
    with torch.cuda.stream(torch.cuda.Stream()):
        cached = take(EAGER // 2)
        del cached
    lent = group.sizes().lent_bytes
    right = replayed([step])
    return [lent > 0, right, group.sizes().lent_bytes]


@check
def a_launch_asks_its_own_device():
    if torch.cuda.device_count() < 2:
        return "one device"
    step = Step()
    with torch.cuda.device(1):
        other = Step()
    group = graphs.lend(step.graph, other.graph)
    seen = [replayed([step, other])]
    held = filled(EAGER, 9)
    for launch in (other.graph.launch, other.graph.cuda_graph.replay):
        other.put(len(seen))
        launch()
        seen.append(other.is_right())
    seen += [group.sizes().lent_bytes >= SCRATCH - 2 * MIB, error_of(step.graph.launch)[0]]
    seen.append(torch.equal(held.cpu(), words(9, EAGER)))
    del held
    seen += [replayed([step, other]), group.sizes().lent_bytes]
    return seen


@check
def several_groups_lend_as_many_as_it_takes():
    steps = [Step(24 * MIB), Step(32 * MIB), Step(16 * MIB)]
    groups = [graphs.lend(step.graph) for step in steps]

    def lent():
        return [group.sizes().lent_bytes > 0 for group in groups]

    assert replayed(steps)
    seen = []
    for size in (52 * MIB, 70 * MIB, 105 * MIB):
        seen.append([eager_work(size), *lent()])
        check_invariants()
        seen.append(replayed(steps))
    # One launch takes from the scratch of the others what eager work leaves.
    held = filled(105 * MIB, 4)
    kind, _ = error_of(steps[1].graph.launch)
    del held
    held = filled(70 * MIB, 4)
    assert replayed([steps[1]])
    seen += [kind, lent()[1], torch.equal(held.cpu(), words(4, 70 * MIB))]
    del held
    return [*seen, replayed(steps)]


@check
def what_is_in_different_groups_is_refused():
    steps = [Step(4 * MIB) for _ in range(3)]
    group = graphs.exclusive(steps[0].graph)
    return [
        error_of(lambda: graphs.lend(steps[0].graph, steps[1].graph))[0],
        error_of(graphs.lend)[0],
        error_of(lambda: graphs.lend(steps[1].graph, enabled=False))[0],
        error_of(lambda: graphs.lend(7))[0],
        graphs.lend(steps[0].graph) is group,
        graphs.lend(group, enabled=False).lends,
    ]


@check
def captures_joins_and_leaves_while_lent():
    handle = graphs.graph_pool_handle()
    steps = [Step(SCRATCH, handle)]
    group = graphs.lend(handle)
    assert replayed(steps)
    held = take(EAGER)
    seen = [error_of(lambda: Step(8 * MIB, handle))[0]]
    late = error_of(lambda: group.join(graphs.graph_pool_handle()))
    seen += [late[0], error_of(lambda: group.leave(handle))[0], group.sizes().lent_bytes > 0]
    check_invariants()
    del held
    steps.append(Step(8 * MIB, handle))
    seen.append(replayed(steps))
    assert eager_work()
    group.join(Step(4 * MIB).graph)
    seen += [group.sizes().lent_bytes, replayed(steps)]
    assert eager_work()
    group.leave(handle)
    seen += [group.sizes().lent_bytes, replayed(steps)]
    seen.append(error_of(eager_work)[0])
    graphs.release_graph_pool_handle(handle)
    return seen


@check
def what_one_graph_leaves_for_another_is_not_lent():
    """As a forward pass does for its backward pass, with eager work in between."""
    handle = graphs.graph_pool_handle()
    group = graphs.lend(handle)
    step = Step(SCRATCH, handle)
    source = filled(RESULT, 1)
    with CaptureGuard(handle) as forward:
        saved = take(RESULT)
        saved.view(torch.int32).copy_(source)
    with CaptureGuard(handle) as backward:
        result = saved.clone()
        del saved
    later = Step(8 * MIB, handle)
    seen = []
    for tag in (10, 20):
        source.copy_(words(tag, RESULT))
        forward.graph.launch()
        seen += [eager_work(), group.sizes().lent_bytes > 0]
        backward.graph.launch()
        seen.append(torch.equal(result.view(torch.int32).cpu(), words(tag, RESULT)))
    seen.append(replayed([step, later]))
    graphs.release_graph_pool_handle(handle)
    return seen


@check
def graphs_go_while_lent():
    before = used()
    step = Step()
    group = graphs.lend(step.graph)
    assert replayed([step])
    held = filled(EAGER, 6)
    seen = [group.sizes().lent_bytes > 0]
    del step
    gc.collect()
    torch.cuda.empty_cache()
    check_invariants()
    seen += [group.sizes().lent_bytes, torch.equal(held.cpu(), words(6, EAGER))]
    del held
    graphs.lend(group, enabled=False)
    return [*seen, used() - before]


@check
def it_ends_at_once_or_before_the_next_launch():
    step = Step()
    group = graphs.lend(step.graph)
    assert replayed([step])
    held = take(EAGER)
    graphs.lend(group, enabled=False)
    seen = [group.lends, group.sizes().lent_bytes > 0, error_of(step.graph.launch)[0]]
    del held
    seen += [replayed([step]), group.sizes().lent_bytes, error_of(eager_work)[0]]
    graphs.lend(group)
    assert eager_work()
    graphs.lend(group, enabled=False)
    return [*seen, group.sizes().lent_bytes, replayed([step])]


@check
def a_group_that_the_program_lets_go_of_lends_on():
    step = Step()
    graphs.lend(step.graph)
    gc.collect()
    assert replayed([step])
    return [eager_work(), replayed([step])]


@check
def the_debug_mode_finds_what_is_wrong_while_lent():
    seen = []
    with graphs.debug():
        step = Step()
        group = graphs.lend(step.graph)
        for tag in range(3):
            assert replayed([step])
            seen += [eager_work(tag=tag), group.sizes().lent_bytes > 0, step.is_right()]
        del step.source
        try:
            step.graph.launch()
        except graphs.GraphMisuseError as error:
            seen += [error.kind.name, error.bytes == RESULT]
        check_invariants()
        seen.append(step.is_right())
    return seen


@check
def a_plan_is_exact_while_lent():
    def small(pages):
        source = torch.ones(pages * MIB // 2, device="cuda", dtype=torch.int32)
        return (source + 1).sum()

    step = Step()
    group = graphs.lend(step.graph)
    assert replayed([step])
    alone = graphs.plan(small, [3, 2]).sets["shared"].total_bytes
    held = filled(84 * MIB, 8)
    before = used(), group.sizes()
    seen = [group.sizes().lent_bytes > 0]
    planned = graphs.plan(small, [3, 2]).sets["shared"].total_bytes
    seen += [abs(planned - alone) <= alone / 50, (used(), group.sizes()) == before]
    check_invariants()
    seen.append(torch.equal(held.cpu(), words(8, 84 * MIB)))
    del held
    seen += [replayed([step]), eager_work(), group.sizes().lent_bytes > 0, replayed([step])]
    return seen


@check
def another_allocator_may_serve_meanwhile():
    step = Step()
    group = graphs.lend(step.graph)
    assert replayed([step])
    held = take(EAGER)
    del held
    seen = [group.sizes().lent_bytes > 0]
    ferro_alloc.uninstall()
    seen.append(replayed([step]))
    ferro_alloc.install()
    seen += [group.sizes().lent_bytes, eager_work()]
    ferro_alloc.uninstall()
    graphs.lend(group, enabled=False)
    ferro_alloc.install()
    return [*seen, group.sizes().lent_bytes, replayed([step])]


@check
def replays_on_several_streams_meet_their_own_pages():
    """Eager work on other streams, and the host waits for nothing but what it reads."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    handles = [graphs.graph_pool_handle() for _ in streams]
    group = graphs.lend(*handles)
    steps = [Step(SCRATCH - 8 * MIB * n, handle) for n, handle in enumerate(handles)]
    draw = random.Random(7)
    wrong = 0
    most = 0
    for _ in range(40):
        step = draw.choice(steps)
        with torch.cuda.stream(draw.choice(streams)):
            step.put(draw.randrange(1 << 20))
            step.graph.launch()
            copy = step.result.clone()
        with torch.cuda.stream(draw.choice(streams)):
            size = draw.choice((20, 60, 100)) * MIB
            data = filled(size, step.tag)
            most = max(most, group.sizes().lent_bytes)
            wrong += not torch.equal(data.cpu(), words(step.tag, size))
            del data
        torch.cuda.synchronize()
        wrong += not torch.equal(copy.view(torch.int32).cpu(), words(step.tag, RESULT))
        del copy
    check_invariants()
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    return [wrong, most > 0]


@check
def launches_and_eager_work_in_two_threads():
    """A thread replays while the other one asks for memory; each sees its own bytes alone."""
    step = Step()
    group = graphs.lend(step.graph)
    done = threading.Event()
    wrong, refused, launched = [], [], []

    def serve():
        stream = torch.cuda.Stream()
        try:
            for tag in range(60):
                with torch.cuda.stream(stream):
                    step.put(tag)
                    try:
                        step.graph.launch()
                    except graphs.LentScratchError:
                        refused.append(tag)
                        continue
                    launched.append(tag)
                    stream.synchronize()
                if not step.is_right():
                    wrong.append(tag)
        finally:
            done.set()

    thread = threading.Thread(target=serve)
    thread.start()
    served = 0
    while not done.is_set():
        with contextlib.suppress(torch.OutOfMemoryError):
            served += eager_work()
    thread.join()
    check_invariants()
    return [wrong, len(refused) + len(launched), served > 0, replayed([step]), group.lends]


finish()
