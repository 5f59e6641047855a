"""Exclusive groups: memory, results in every order, several streams, joining and leaving."""

import gc
import itertools
import random
import threading
import warnings
import weakref

from tests.python.feature_checks import (
    GIB,
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

from ferro_alloc import graphs, sim
from ferro_alloc.graphs import CaptureGuard

SIZES = (16, 12, 8, 4)
RESULT = 2 * MIB
UNKNOWN = 999  # a CUresult
OF_TORCH = torch.cuda.CUDAGraph.replay


class Step:
    """A graph that copies `source` through scratch of so many MiB into a result."""

    def __init__(self, size, pool=None):
        self.source = filled(RESULT, size)
        with CaptureGuard(pool) as guard:
            scratch = (take(RESULT) for _ in range(size * MIB // RESULT))
            self.result = copied_through(self.source, [*scratch])
        self.graph = guard.graph

    def put(self, tag):
        self.source.copy_(filled(RESULT, tag))

    def is_right(self, tag):
        return torch.equal(self.result.view(torch.int32).cpu(), words(tag, RESULT))


class StepOnOneRange(Step):
    """A step whose result and scratch are adjacent, in memory that was taken at one time."""

    def __init__(self, size):
        self.source = filled(RESULT, size)
        with CaptureGuard() as guard:
            take(size * MIB)
            self.result = take(RESULT)
            scratch = take(size * MIB - RESULT).split(RESULT)
            scratch[0].view(torch.int32).copy_(self.source)
            for before, after in itertools.pairwise([*scratch, self.result]):
                after.copy_(before)
            del scratch, before, after
        self.graph = guard.graph


def reserved():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def pool_of(step):
    return tuple(step.graph.cuda_graph.pool())


def in_random_order(steps, rounds=30):
    """Whether each result is what its own graph wrote last, after each replay."""
    draw = random.Random(1)
    tags = {}
    for tag in range(rounds):
        step = draw.choice(steps)
        step.put(tag)
        step.graph.launch()
        tags[step] = tag
        if not all(known.is_right(value) for known, value in tags.items()):
            return False
    return True


@check
def separate_pools_cost_their_results_and_the_largest_scratch():
    before = reserved()
    group = graphs.exclusive(name="decode")
    steps = []
    for size in SIZES:
        steps.append(Step(size))
        group.join(steps[-1].graph)
    grown = reserved() - before
    results = len(SIZES) * 2 * RESULT  # with the sources
    sizes = group.sizes()
    seen = [
        grown <= results + SIZES[0] * MIB + 2 * MIB,
        sizes.shared_bytes <= SIZES[0] * MIB + 2 * MIB,
        sizes.scratch_bytes >= (sum(SIZES) - 2 * len(SIZES)) * MIB,
        in_random_order(steps),
        # Each shared page is counted once.
        sum(pool.sizes().private_bytes for pool in group.pools) <= grown,
    ]
    del steps, group
    gc.collect()
    return [*seen, reserved() - before]


@check
def one_pool_replays_in_any_order():
    before = reserved()
    handle = graphs.graph_pool_handle("decode")
    group = graphs.exclusive(handle, name="decode")
    steps = [Step(size, handle) for size in sorted(SIZES)]
    grown = reserved() - before
    results = len(SIZES) * 2 * RESULT
    seen = [grown <= results + SIZES[0] * MIB + 2 * MIB, in_random_order(steps)]
    seen.append(len(group.pools))
    graphs.release_graph_pool_handle(handle)
    del steps
    gc.collect()
    return [*seen, reserved() - before]


@check
def graphs_that_exist_join_and_leave():
    before = reserved()
    steps = [Step(size) for size in SIZES]
    apart = reserved() - before
    group = graphs.exclusive(*(step.graph.cuda_graph for step in steps))
    together = reserved() - before
    right = in_random_order(steps)
    group.leave(steps[1].graph, pool_of(steps[2]))
    left = reserved() - before
    right = right and in_random_order(steps)
    group.join(*(step.graph for step in steps))
    again = reserved() - before
    right = right and in_random_order(steps)
    ours = [together < apart, together < left <= apart, again == together, right]
    del steps, group
    gc.collect()
    return [*ours, reserved() - before]


@check
def handles_with_results_stay_whole():
    held = take(GIB)  # so that handles have several pages
    before = reserved()
    steps = [StepOnOneRange(16) for _ in range(3)]
    for tag, step in enumerate(steps):
        step.put(tag)
        step.graph.launch()
    apart = reserved() - before
    planned = graphs.plan([step.graph for step in steps], pools=["exclusive"])
    group = graphs.exclusive(*(step.graph for step in steps))
    together = reserved() - before
    stayed = all(step.is_right(tag) for tag, step in enumerate(steps))
    seen = [apart // MIB, together // MIB, group.sizes().shared_bytes // MIB, stayed]
    seen += [planned.sets["exclusive"].reserved_bytes // MIB, in_random_order(steps)]
    del steps, group, held
    gc.collect()
    return seen


@check
def pools_beside_a_group_fill_their_pages():
    def taken():
        with CaptureGuard(graphs.CapturePool()) as guard:
            results = [take(MIB + MIB // 2).zero_() for _ in range(8)]
        pool = guard.graph.pool.sizes()
        return pool.live_bytes == sum(r.nbytes for r in results), pool.private_bytes // MIB

    before = taken()
    group = graphs.exclusive(Step(4).graph)
    beside = taken()
    del group
    return before, beside == before


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call()
    return value, [(each.category.__name__, each.filename == __file__) for each in caught]


@check
def a_late_declaration_is_reported_once():
    """The second graph's result lies in scratch of the first, whose replay then destroys it."""
    handle, early = graphs.graph_pool_handle(), graphs.graph_pool_handle()
    steps = [Step(size, handle) for size in SIZES[:2]]
    group, late = warnings_of(lambda: graphs.exclusive(handle))
    right = []
    for order in (steps, steps[::-1]):
        for tag, step in enumerate(steps, 3):
            step.put(tag)
        for step in order:
            step.graph.launch()
        torch.cuda.synchronize()
        right.append(all(step.is_right(tag) for tag, step in enumerate(steps, 3)))
    _, other = warnings_of(lambda: group.join(early))
    kept = [Step(size, early) for size in SIZES[:2]]
    _, alone = warnings_of(lambda: group.join(Step(4).graph))
    group.leave(handle)
    _, again = warnings_of(lambda: group.join(handle))
    found = [late, right, other, alone, again]
    group.leave(*group.pools)
    for name in (handle, early):
        graphs.release_graph_pool_handle(name)
    return *found, len(kept)


@check
def pools_that_are_not_members_are_refused():
    step = Step(4)
    group = graphs.exclusive(step.graph, name="first")
    errors = [
        error_of(lambda: graphs.exclusive(step.graph, name="second")),
        error_of(lambda: group.leave(graphs.graph_pool_handle())),
        error_of(lambda: group.join(7)),
    ]
    with CaptureGuard(pool_of(step)):
        errors.append(error_of(lambda: group.join(graphs.graph_pool_handle())))
    kinds = {kind for kind, _ in errors}
    return [sorted(kinds), ["another group" in errors[0][1], "not in this" in errors[1][1]]]


@check
def a_pool_joins_on_all_devices_or_on_none():
    step = Step(4)
    group = graphs.exclusive(name="refused")
    other = torch.cuda.device_count() - 1
    with torch.cuda.device(other), CaptureGuard():
        kind, _ = error_of(lambda: group.join(step.graph))
    sizes = group.sizes()
    return [kind, sizes.shared_bytes, sizes.scratch_bytes]


@check
def profilers_are_told_of_blocks_that_stay():
    """A capture gets no memory that an earlier graph writes: such a block is released again."""
    handle, stream = graphs.graph_pool_handle(), torch.cuda.Stream()
    graphs.exclusive(handle)
    kept = []
    for _ in range(2):
        with CaptureGuard(handle, stream=stream) as first:
            kept.append(take(RESULT).zero_())
    with (
        torch.profiler.profile(profile_memory=True) as profile,
        CaptureGuard(handle, stream=stream) as second,
    ):
        kept.clear()
        taken = take(RESULT)
    changes = [
        event.nbytes()
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]" and abs(event.nbytes()) == taken.nbytes
    ]
    graphs.release_graph_pool_handle(handle)
    return [first.graph.pool is second.graph.pool, changes]


@check
def a_pool_with_checkpoints_is_a_member():
    handle = graphs.graph_pool_handle()
    steps = [Step(8), Step(4, handle)]
    torch._C._cuda_getCheckpointState(0, handle)
    group = graphs.exclusive(*(step.graph for step in steps))
    seen = [in_random_order(steps), group.sizes().shared_bytes <= 8 * MIB]
    steps.append(Step(6, handle))
    state = torch._C._cuda_getCheckpointState(0, handle)
    seen += [in_random_order(steps), group.sizes().shared_bytes <= 8 * MIB]
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    graphs.release_graph_pool_handle(handle)
    return [*seen, in_random_order(steps), group.sizes().scratch_bytes >= 14 * MIB]


@check
def replay_is_restored_on_leave():
    step = Step(4)
    group = graphs.exclusive(step.graph)
    during = torch.cuda.CUDAGraph.replay
    group.leave(step.graph)
    return [during is OF_TORCH, torch.cuda.CUDAGraph.replay is OF_TORCH]


def wrong_results(steps, launch):
    """The number of wrong results in rounds with separate inputs for each graph; `launch(number,
    step)` replays one."""
    wrong = 0
    for tag in range(20):
        for number, step in enumerate(steps):
            step.put(100 * tag + number)
        torch.cuda.synchronize()
        for number, step in enumerate(steps):
            launch(number, step)
        torch.cuda.synchronize()
        wrong += sum(not step.is_right(100 * tag + n) for n, step in enumerate(steps))
    return wrong


def on_two_streams(ordered):
    """How many results are wrong when each member replays on its own stream."""
    steps = [Step(8) for _ in range(3)]
    group = graphs.exclusive(*(step.graph for step in steps), ordered=ordered)
    streams = [torch.cuda.Stream() for _ in steps]

    def launch(number, step):
        if number % 2:
            step.graph.launch(streams[number])
        else:
            with torch.cuda.stream(streams[number]):
                step.graph.cuda_graph.replay()

    wrong = wrong_results(steps, launch)
    del group
    return wrong


@check
def a_pool_that_cannot_leave_one_device_stays_a_member():
    """The driver refuses the wait on the second device, and then the one that undoes the first. A
    wait of a device records an event of each."""
    steps = [Step(4) for _ in range(2)]
    group = graphs.exclusive(steps[0].graph)
    torch.cuda.synchronize()
    sim.fault("cuCtxRecordEvent", after=2, result=UNKNOWN)
    kind, text = error_of(lambda: group.join(steps[1].graph))
    sim.clear_faults()
    streams = [torch.cuda.Stream() for _ in steps]
    wrong = wrong_results(steps, lambda number, step: step.graph.launch(streams[number]))
    seen = [kind, "is a member" in text, len(group.pools), wrong]
    group.leave(steps[1].graph)
    return [*seen, len(group.pools)]


@check
def replays_on_several_streams_are_ordered():
    return on_two_streams(ordered=False)


@check
def a_group_lives_as_long_as_its_members():
    steps = [Step(8) for _ in range(3)]
    kept = weakref.ref(graphs.exclusive(*(step.graph for step in steps)))
    gc.collect()
    streams = [torch.cuda.Stream() for _ in steps]
    wrong = wrong_results(steps, lambda number, step: step.graph.launch(streams[number]))
    refused = error_of(lambda: graphs.exclusive(steps[0].graph))[0]
    seen = [wrong, kept() is not None, refused]
    del steps[1:]
    return [*seen, len(kept().pools), len(graphs.exclusive().pools)]


@check
def a_group_goes_with_its_last_member():
    step, left = Step(4), Step(4)
    groups = [weakref.ref(graphs.exclusive(of.graph)) for of in (step, left)]
    groups[1]().leave(left.graph)
    del step
    gc.collect()
    graphs.exclusive()  # the next call about groups
    gc.collect()
    return [[group() is None for group in groups], torch.cuda.CUDAGraph.replay is OF_TORCH]


@check
def a_pool_without_graphs_stays_a_member():
    handles = [torch.cuda.graph_pool_handle() for _ in range(2)]
    group = graphs.exclusive(*handles)
    graphs.exclusive()
    steps = [Step(8, handle) for handle in handles]
    streams = [torch.cuda.Stream() for _ in steps]
    wrong = wrong_results(steps, lambda number, step: step.graph.launch(streams[number]))
    return [wrong, len(group.pools)]


@check
def groups_launch_beside_each_other():
    """A launch of one group begins while another group's has not returned."""
    steps = [Step(4) for _ in range(2)]
    groups = [graphs.exclusive(step.graph) for step in steps]
    begun, done = threading.Event(), threading.Event()
    outcomes = []

    def replay():
        begun.set()
        outcomes.append(done.wait())  # the runner stops a program that waits for ever

    handles = [pool_of(step) for step in steps]
    thread = threading.Thread(target=groups[0].launch, args=(replay, handles[0]))
    thread.start()
    begun.wait()
    groups[1].launch(done.set, handles[1])
    thread.join()
    return outcomes


@check
def a_missing_order_shows_as_wrong_bytes():
    return on_two_streams(ordered=True) > 0


@check
def a_graph_of_a_pool_that_is_a_member_is_ordered():
    handles = [graphs.graph_pool_handle() for _ in range(2)]
    group = graphs.exclusive(*handles)
    steps = [Step(8, handle) for handle in handles]
    streams = [torch.cuda.Stream() for _ in steps]

    def replay(number, step):
        with torch.cuda.stream(streams[number]):
            step.graph.cuda_graph.replay()

    wrong = [
        wrong_results(steps, lambda number, step: step.graph.launch(streams[number])),
        wrong_results(steps, replay),
    ]
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    return [wrong, len(group.pools)]


@check
def graphs_of_another_device_are_ordered_there():
    with torch.cuda.device(1):
        steps = [Step(8) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in steps]
        group = graphs.exclusive(*(step.graph for step in steps))

        def replay(number, step):
            with torch.cuda.stream(streams[number]), torch.cuda.device(0):
                step.graph.cuda_graph.replay()

        return [wrong_results(steps, replay), len(group.pools)]


@check
def results_that_die_and_captures_that_fail():
    before = reserved()
    handle = graphs.graph_pool_handle()
    other = graphs.graph_pool_handle()
    graphs.exclusive(handle, other)
    steps = []
    for number in range(6):
        steps.append(Step(SIZES[number % 4], (handle, other)[number % 2]))
        if number == 2:
            del steps[1].result
            steps.pop(1)

        def fail():
            with CaptureGuard(handle):
                take(6 * MIB)
                raise ValueError

        error_of(fail)
        check_invariants()
        assert in_random_order(steps, 10)
    for used in (handle, other):
        graphs.release_graph_pool_handle(used)
    del steps
    gc.collect()
    return reserved() - before


finish()
