"""Misuses of graphs that the debug mode finds; each program runs with and without the misuse.

The errors must name the lines that have comments at their ends.
"""

import gc
import random
import warnings
from pathlib import Path

from tests.python.feature_checks import MIB, check, filled, finish, take, words
from tests.python.host_bytes import same_bytes

import torch

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard, GraphMisuseError

FILE = Path(__file__)
PAGE = 2 * MIB


def line(tag):
    """How an error names the line with that comment."""
    numbers = [n for n, text in enumerate(FILE.read_text().splitlines(), 1) if f"# {tag}" in text]
    assert len(numbers) == 1, (tag, numbers)
    return f"{FILE.parent.name}/{FILE.name}:{numbers[0]}"


def misuse_of(call):
    """The misuse that the call raises, or None. A misuse launches nothing."""
    try:
        call()
    except GraphMisuseError as error:
        return error
    return None


def complaint(call):
    """The message of the debug mode, or None."""
    error = misuse_of(call)
    return None if error is None else str(error)


def facts(error, allocated=None, freed=None):
    """Kind, graph, bytes, and whether the stacks have the lines with these comments."""
    named = [
        any(text.startswith(f"{line(tag)} ") for text in stack) and line(tag) in str(error)
        for tag, stack in ((allocated, error.allocated_at), (freed, error.freed_at))
        if tag is not None
    ]
    return [error.kind.name, error.graph.split(",")[0], error.bytes, *named]


def copied(source, pool=None):
    with CaptureGuard(pool) as guard:
        result = source.clone()
    return guard.graph, result


@check
def a_freed_input():
    with graphs.debug():
        source = torch.empty(PAGE, dtype=torch.uint8, device="cuda")  # allocated: input
        where = source.data_ptr()
        handle = graphs.graph_pool_handle("decode")
        graph, _result = copied(source, handle)
        fine = complaint(graph.launch)
        source = None  # freed: input
        error = misuse_of(graph.launch)
        return [
            fine,
            facts(error, "allocated: input", "freed: input"),
            error.address == where,
            graph.num_replays,
            "record_buffer" in str(error),
        ]


@check
def an_input_whose_memory_another_tensor_has():
    with graphs.debug():
        source = take(PAGE)
        graph, _result = copied(source, graphs.graph_pool_handle("decode"))
        where = source.data_ptr()
        del source
        again = take(PAGE)
        return [again.data_ptr() == where, facts(misuse_of(graph.launch))]


@check
def an_input_that_is_freed_during_the_capture():
    with graphs.debug():
        source = torch.empty(PAGE, dtype=torch.uint8, device="cuda")  # allocated: rebound
        with CaptureGuard(graphs.graph_pool_handle("decode")) as guard:
            source = source.clone()  # freed: rebound
        return facts(misuse_of(guard.graph.launch), "allocated: rebound", "freed: rebound")


@check
def an_input_of_a_kernel():
    with graphs.debug():
        source = torch.ones(64, 64, device="cuda")  # allocated: operand
        strided = torch.ones(64, 64, device="cuda").t()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs.graph_pool_handle("decode")):
            result = (source + strided).sum(0)
        fine = complaint(graph.replay)
        del source  # freed: operand
        error = misuse_of(graph.replay)
        return [fine, facts(error, "allocated: operand", "freed: operand"), result.shape[0]]


@check
def a_recorded_buffer_is_kept():
    with graphs.debug():
        source = take(PAGE)
        handle = graphs.graph_pool_handle("decode")
        graph, _result = copied(source, handle)
        graph.pool.record_buffer(source)
        del source
        return [complaint(graph.launch), graph.num_replays]


@check
def memory_that_only_earlier_calls_used():
    """Arguments of kernels have unused parts, in which earlier calls left addresses."""
    with graphs.debug():
        bystanders = [torch.ones(64, 64, device="cuda") for _ in range(100)]
        x, y = (torch.ones(32, 48, device="cuda") for _ in range(2))
        results, found = [], []
        for call in (
            lambda: torch._foreach_norm([x]),
            lambda: torch.cat([x.t(), y.t()]),
            lambda: x.t().max(0),
            lambda: torch.where(x.t() > 0, x.t(), y.t()),
        ):
            torch._foreach_norm(torch._foreach_add(bystanders, 1))
            for one in bystanders:
                one.t().max(0)
            with CaptureGuard() as guard:
                results.append(call())
            found.append((guard.graph, call))
        del bystanders, one
        return [complaint(graph.launch) for graph, _ in found]


@check
def a_freed_workspace():
    with graphs.debug():
        stream = torch.cuda.Stream()
        # For a product as long as this one, cuBLAS adds up parts in its workspace.
        left, right = (torch.ones(size, device="cuda") for size in ((64, 1 << 14), (1 << 14, 64)))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            product = left @ right  # allocated: workspace
        stream.synchronize()
        with CaptureGuard(graphs.graph_pool_handle("decode"), stream=stream) as guard:
            product = left @ right
        fine = complaint(guard.graph.launch)
        torch._C._cuda_clearCublasWorkspaces()  # freed: workspace
        error = misuse_of(guard.graph.launch)
        return [fine, facts(error, "allocated: workspace", "freed: workspace"), product.shape[0]]


class Chain:
    """Two graphs of one pool: the second reads a result of the first that the program has freed."""

    def __init__(self, pool):
        self.source = filled(PAGE, 1)
        with CaptureGuard(pool) as guard:
            between = self.source.clone()  # allocated: result
        self.writer = guard.graph
        with CaptureGuard(pool) as guard:
            self.result = between.clone()
        self.reader = guard.graph
        del between  # freed: result


@check
def a_result_kept_across_the_replay_of_a_partner():
    with graphs.debug():
        chain = Chain(graphs.graph_pool_handle("step"))
        source = filled(PAGE, 2)
        partner, other = copied(source, graphs.graph_pool_handle("prefill"))
        group = graphs.exclusive(chain.writer, chain.reader, partner)
        for pool in group.pools:
            graphs.release_graph_pool_handle(pool.handle)
        chain.writer.launch()
        fine = complaint(chain.reader.launch)
        partner.launch()
        error = misuse_of(chain.reader.launch)
        chain.writer.launch()
        again = complaint(chain.reader.launch)
        return [
            fine,
            facts(error, "allocated: result", "freed: result"),
            error.partner.split(",")[0],
            again,
            len(group.pools),
            other.numel(),
        ]


@check
def a_result_whose_pages_a_later_capture_has():
    """The capture is into the same pool, at other addresses."""
    with graphs.debug():
        handle = graphs.graph_pool_handle("step")
        group = graphs.exclusive(handle)
        chain = Chain(handle)
        source = filled(4 * PAGE, 3)
        with CaptureGuard(handle) as guard:
            source.clone().clone()
        graphs.release_graph_pool_handle(handle)
        order = (chain.writer, guard.graph, chain.reader)
        for graph in order[:2]:
            graph.launch()
        error = misuse_of(order[2].launch)
        with graphs.debug(False):
            for graph in order:
                graph.launch()
        destroyed = not torch.equal(chain.result, chain.source)
        return [
            facts(error, "allocated: result", "freed: result"),
            error.partner.split(",")[0],
            destroyed,
            len(group.pools),
        ]


class Late:
    """A graph of a pool that joins its group after all captures. It copies its source through
    scratch into results. With `moves` its later scratch has the pages of its earlier scratch."""

    def __init__(self, pool, scratch, results, moves):
        self.source = filled(PAGE, 1)
        with CaptureGuard(pool) as guard:
            between = []
            self.results = []
            for number in range(scratch):
                between.append(self.source.clone())
                if moves or number < results:
                    self.results.append(between[-1].clone())  # allocated: late result
            del between
            if moves:
                large = take(scratch * PAGE)
                for part in large.split(PAGE):
                    part.view(torch.int32).copy_(self.source)
                del large, part
        self.graph = guard.graph

    def put(self, tag):
        self.source.copy_(filled(PAGE, tag))

    def is_right(self, tag):
        return all(has(result, tag) for result in self.results)


def has(result, tag):
    return same_bytes(result.cpu(), words(tag, PAGE))


def findings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [each for each in caught if each.category is graphs.GraphMisuseWarning]


def late_pool(made):
    """The steps that `made` captures into a pool, and the group that the pool then joins."""
    handle = graphs.graph_pool_handle("late")
    steps = made(handle)
    with warnings.catch_warnings(action="ignore"):
        group = graphs.exclusive(handle)
    graphs.release_graph_pool_handle(handle)
    return steps, group


@check
def a_result_in_scratch_of_a_graph_captured_before_the_pool_joined():
    with graphs.debug():
        steps, group = late_pool(
            lambda pool: [Late(pool, 4, results=1, moves=False) for _ in range(2)]
        )
        for tag, step in enumerate(steps, 1):
            step.put(tag)
        first, second = (step.graph.launch for step in steps)
        silent = [findings_of(call) for call in (second, second)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", graphs.GraphMisuseWarning)
            try:
                first()
                refused = None
            except graphs.GraphMisuseWarning as found:
                refused = found.misuse.kind.name
        kept = [steps[1].is_right(2), steps[0].graph.num_replays]
        (found,) = findings_of(first)
        misuse = found.message.misuse
        return [
            silent,
            refused,
            kept,
            facts(misuse, "allocated: late result"),
            misuse.partner.split(",")[0],
            misuse.address == steps[1].results[0].data_ptr(),
            found.filename == __file__,
            [len(findings_of(call)) for call in (first, second, first)],
            [step.is_right(tag) for tag, step in enumerate(steps, 1)],
            len(group.pools),
        ]


def replayed_in_random_order(seed, moves):
    """How many findings name other results than were destroyed, how many replays destroyed results,
    and how many destroyed none."""
    draw = random.Random(seed)

    def capture(pool):
        sizes = [draw.randint(2, 8) for _ in range(5)]
        return [
            Late(pool, size, draw.randint(1, size), moves and draw.random() < 0.5) for size in sizes
        ]

    steps, group = late_pool(capture)
    names = {f"graph {number} of pool 'late'": step for number, step in enumerate(steps, 1)}
    intact = {}  # for each step its last tag, and the results that have it
    counts = [0, 0, 0]
    for tag in range(60):
        if tag == 40:  # results that are not live any more
            del steps[2].results[:]
            intact.pop(steps[2], None)
        step = draw.choice(steps)
        step.put(tag)
        found = findings_of(step.graph.launch)
        named = {names[each.message.misuse.partner.split(",")[0]] for each in found}
        intact[step] = tag, list(step.results)
        destroyed = set()
        for other, (last, results) in intact.items():
            right = [result for result in results if has(result, last)]
            if len(right) != len(results):
                destroyed.add(other)
            results[:] = right
        assert step not in destroyed
        counts[0] += named != destroyed
        counts[1 if destroyed else 2] += 1
    return counts, group


@check
def late_pools_in_random_orders():
    with graphs.debug():
        found = [replayed_in_random_order(seed, seed % 2)[0] for seed in range(6)]
        return [sum(wrong for wrong, *_ in found), all(min(each[1:]) > 0 for each in found)]


@check
def early_pools_in_random_orders():
    """The graphs are captured while the pool is a member: nothing is destroyed or found."""
    with graphs.debug():
        handle = graphs.graph_pool_handle("early")
        group = graphs.exclusive(handle)
        steps = [Late(handle, size, 1, False) for size in (4, 2, 3)]
        found = [findings_of(step.graph.launch) for step in (*steps[::-1], *steps, *steps[::-1])]
        graphs.release_graph_pool_handle(handle)
        return [sum(map(len, found)), len(group.pools)]


@check
def a_partner_of_no_group_does_no_harm():
    with graphs.debug():
        chain = Chain(graphs.graph_pool_handle("step"))
        source = filled(PAGE, 2)
        partner, other = copied(source, graphs.graph_pool_handle("prefill"))
        found = []
        for graph in (chain.writer, partner, chain.reader):
            found.append(complaint(graph.launch))
        return [found, other.numel()]


@check
def a_graph_of_the_pool_that_was_given_the_same_memory():
    """The graphs are in one pool without a group, so they must replay in the order of their
    captures."""
    with graphs.debug():
        handle = graphs.graph_pool_handle("step")
        chain = Chain(handle)
        with CaptureGuard(handle) as guard:
            other = [chain.source.clone() for _ in range(2)]
        found = []
        for graph in (chain.writer, chain.reader, guard.graph, chain.writer, chain.reader):
            found.append(complaint(graph.launch))
        guard.graph.launch()
        error = misuse_of(chain.reader.launch)
        return [found, facts(error, "allocated: result"), error.partner.split(",")[0], len(other)]


def two_members(ordered, by_handle=False):
    handles = [graphs.graph_pool_handle(name) for name in ("decode", "prefill")]
    made = []
    for number, handle in enumerate(handles):
        source = filled(8 * MIB, number)
        with CaptureGuard(handle) as guard:
            between = source.clone()  # allocated: scratch
            result = between[: MIB // 4].clone()
            del between
        made.append((guard.graph, source, result))
    graphs_of = [graph for graph, *_ in made]
    group = graphs.exclusive(*(handles if by_handle else graphs_of), ordered=ordered)
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    return graphs_of, made, group


def replays_on_two_streams(members, waits):
    """The number of the replay that is refused, and why; None if none is refused."""
    streams = [torch.cuda.Stream() for _ in members]
    torch.cuda.synchronize()
    for number in range(60):
        graph, stream = members[number % 2], streams[number % 2]
        if waits:
            stream.wait_stream(streams[(number + 1) % 2])
        with torch.cuda.stream(stream):
            error = misuse_of(graph.cuda_graph.replay)
        if error is not None:
            return number, error
    torch.cuda.synchronize()
    return None


@check
def overlapping_replays_of_a_group():
    with graphs.debug():
        members, kept, group = two_members(ordered=True)
        found = replays_on_two_streams(members, waits=False)
        if found is None:
            return None
        number, error = found
        return [
            number,
            facts(error, "allocated: scratch"),
            error.partner.split(",")[0],
            len(kept),
            len(group.pools),
        ]


@check
def replays_that_the_program_orders():
    with graphs.debug():
        members, kept, group = two_members(ordered=True)
        return [replays_on_two_streams(members, waits=True) is None, len(kept), len(group.pools)]


@check
def replays_that_the_group_orders():
    with graphs.debug():
        members, kept, group = two_members(ordered=False)
        return [replays_on_two_streams(members, waits=False) is None, len(kept), len(group.pools)]


@check
def replays_of_pools_that_joined_by_their_handles():
    with graphs.debug():
        members, kept, group = two_members(ordered=False, by_handle=True)
        return [replays_on_two_streams(members, waits=False) is None, len(kept), len(group.pools)]


@check
def a_pool_that_is_released_under_its_graph():
    with graphs.debug():
        source = filled(PAGE, 1)
        handle = graphs.graph_pool_handle("decode")
        with CaptureGuard(handle) as guard:
            result = source.clone()  # allocated: of the pool
        fine = complaint(guard.graph.launch)
        torch._C._cuda_releasePool(0, handle)
        error = misuse_of(guard.graph.launch)
        # The graph releases the pool too.
        torch._C._cuda_beginAllocateToPool(0, handle)
        torch._C._cuda_endAllocateToPool(0, handle)
        return [fine, facts(error, "allocated: of the pool"), result.numel()]


@check
def a_result_in_a_deleted_pool():
    with graphs.debug():
        source = filled(PAGE, 1)
        first, between = copied(source, graphs.graph_pool_handle("first"))
        graphs.release_graph_pool_handle(first.pool.handle)
        second, result = copied(between, graphs.graph_pool_handle("second"))
        fine = complaint(second.launch)
        del between, first  # freed: with its pool
        gc.collect()
        error = misuse_of(second.launch)
        return [fine, facts(error, freed="freed: with its pool"), result.numel()]


@check
def nothing_is_left_when_it_is_off():
    of_class = torch.cuda.CUDAGraph
    names = ("capture_begin", "capture_end", "replay", "reset")
    before = [getattr(of_class, name) for name in names]
    recorded = torch._C._cuda_isHistoryEnabled()
    with graphs.debug():
        source = take(PAGE)
        graph, result = copied(source)
        inside = [getattr(of_class, name) for name in names], torch._C._cuda_isHistoryEnabled()
        with graphs.debug(False):
            off = [getattr(of_class, name) for name in names] == before
        on = [getattr(of_class, name) for name in names] == inside[0]
    del source
    graph.launch()  # is not checked
    return [
        off,
        on,
        not any(now is then for now, then in zip(inside[0], before, strict=True)),
        [recorded, inside[1], torch._C._cuda_isHistoryEnabled()],
        [getattr(of_class, name) for name in names] == before,
        result.numel(),
    ]


finish()
