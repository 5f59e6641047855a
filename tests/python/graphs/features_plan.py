"""Plans are compared with what captures then take, and must leave nothing behind."""

import ctypes
import gc

from tests.python.feature_checks import KIB, MIB, check, error_of, finish, take

import torch

import ferro_alloc
from ferro_alloc import graphs
from ferro_alloc.graphs import CapturedGraph, CaptureGuard

BATCHES = (96, 88, 80, 72, 64, 48, 32, 24, 16, 8, 4, 2, 1)
ARRANGEMENTS = ("separate", "shared", "exclusive", "exclusive shared")


def step(row, result):
    """A step of a batch: temporaries of several sizes, small and large, and three results."""

    def run(rows):
        x = take(rows * row)
        for layer in range(12):
            wide = take(rows * row * (1 + layer % 3)).zero_()
            mask = take(rows * 8).zero_()
            x = take(rows * row).zero_()
        del wide, mask
        return [take(rows * result).zero_() for _ in range(3)], x[:1].clone()

    return run


STEPS = {
    "large": step(200 * KIB, 40 * KIB),
    "small results": step(100 * KIB, 16),
    "tiny": step(3 * KIB, 16),
    "results alone": step(64, 100 * KIB),
}


def reserved():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def taken(function, sizes, pools):
    """The bytes that the captures take when a program makes them."""
    before = reserved()
    count = 1 if "shared" in pools else len(sizes)
    handles = [graphs.graph_pool_handle() for _ in range(count)]
    group = graphs.exclusive(*handles) if "exclusive" in pools else None
    kept = []
    for number, size in enumerate(sizes):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=handles[number % count]):
            results = function(size)
        kept.append((graph, results))
    grown = reserved() - before
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    del kept, group, graph, results
    return grown, reserved() - before


def is_close(planned, real):
    return abs(planned - real) <= 0.02 * real


def everything():
    """The state that a plan must not change."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    current = {k: v for k, v in torch.cuda.memory_stats().items() if k.endswith("current")}
    blocks = [
        (segment["address"], segment["total_size"], segment["segment_pool_id"], segment["blocks"])
        for segment in torch.cuda.memory_snapshot()
    ]
    return (
        current,
        str(sorted(blocks)),
        ferro_alloc.device().private_pools,
        torch.cuda.get_rng_state().tolist(),
        torch.get_rng_state().tolist(),
        torch.cuda.current_stream(),
        graphs.capture_status(),
    )


def warmed_up():
    """Allocates what PyTorch keeps for the first graph of a process."""
    graphs.plan(lambda: take(KIB).zero_())


@check
def one_graph():
    found = []
    for function in STEPS.values():
        planned = graphs.plan(function, [64], pools=["separate"])
        real, left = taken(function, [64], "separate")
        found.append(is_close(planned.sets["separate"].reserved_bytes, real) and left == 0)
    return found


def of_a_set(name, sizes=BATCHES):
    planned = graphs.plan(STEPS[name], sizes, pools=ARRANGEMENTS)
    found = []
    for pools in ARRANGEMENTS:
        real, left = taken(STEPS[name], sizes, pools)
        one = planned.sets[pools]
        found.append(one.is_measured and is_close(one.reserved_bytes, real) and left == 0)
    return found


@check
def a_set_of_large_steps():
    return of_a_set("large")


@check
def a_set_of_steps_with_small_results():
    return of_a_set("small results")


@check
def a_set_of_tiny_steps():
    return of_a_set("tiny")


@check
def a_set_of_results_alone():
    return of_a_set("results alone")


@check
def a_set_from_small_to_large():
    return of_a_set("large", BATCHES[::-1])


@check
def a_plan_leaves_nothing():
    warmed_up()
    torch.manual_seed(3)
    kept = take(5 * MIB)
    own = graphs.graph_pool_handle("own")
    with CaptureGuard(own) as guard:
        result = take(3 * MIB).zero_()
    before = everything()

    def draw(rows):
        torch.rand(3)
        return torch.rand(rows * KIB, device="cuda")

    planned = graphs.plan(draw, BATCHES, pools=ARRANGEMENTS, num_warmup_iters=2)
    after = everything()
    guard.graph.launch()
    numbers = torch.rand(4, device="cuda").shape == (4,)
    graphs.release_graph_pool_handle(own)
    same = [one == other for one, other in zip(before, after, strict=True)]
    return same, planned.kept_bytes, kept.numel() + result.numel(), numbers


@check
def errors_of_the_callable_go_on():
    warmed_up()
    before = everything()
    seen = []

    def fail_in(call):
        calls = iter(range(call + 1))

        def function(rows):
            kept = take(rows * MIB).zero_()
            if next(calls) == call:
                raise KeyError("stop")
            return kept

        return function

    # The failing call is in the warm-up, in the capture alone, or in the second of the captures
    # that are held together.
    for call in (0, 1, 5):
        function = fail_in(call)
        seen.append(
            error_of(lambda function=function: graphs.plan(function, [4, 2], pools=["shared"]))[0]
        )

    def forbidden(rows):
        take(rows * MIB)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    seen.append("Error" in error_of(lambda: graphs.plan(forbidden, [3]))[0])
    return seen, everything() == before


@check
def results_and_state_are_told_apart():
    kept = {}

    def function(rows):
        kept["cache"] = take(6 * MIB).zero_()
        take(9 * MIB).zero_()
        return {"out": (take(rows * MIB).zero_()[5:], "text"), "two": take(2 * MIB).zero_()}

    planned = graphs.plan(function, [4], pools=["separate"])
    one = planned.captures[0]
    sizes = [one.results_bytes, one.state_bytes, one.scratch_bytes]
    return [size // MIB for size in sizes], planned.kept_bytes // MIB


@check
def what_the_driver_takes_is_counted():
    library = ctypes.CDLL("libcudart.so.13")
    taken_by_driver, upload = [], CapturedGraph.upload

    def upload_that_costs(graph, stream=None):
        pointer = ctypes.c_void_p()
        assert library.cudaMalloc(ctypes.byref(pointer), 4 * MIB) == 0
        taken_by_driver.append(pointer)
        upload(graph, stream)

    CapturedGraph.upload = upload_that_costs
    try:
        planned = graphs.plan(STEPS["tiny"], [4, 2])
    finally:
        CapturedGraph.upload = upload
        for pointer in taken_by_driver:
            library.cudaFree(pointer)
    own = [capture.driver_bytes // MIB for capture in planned.captures]
    shared = planned.sets["shared"]
    sums = shared.total_bytes == shared.reserved_bytes + 8 * MIB
    return own, [one.driver_bytes // MIB for one in planned.sets.values()], sums


@check
def without_the_memory_it_is_estimated():
    function, sizes = STEPS["large"], BATCHES[:10]
    planned = graphs.plan(function, sizes, pools=ARRANGEMENTS)
    largest = planned.captures[0].reserved_bytes
    total = torch.cuda.mem_get_info()[1]
    before = reserved()
    torch.cuda.set_per_process_memory_fraction((before + largest + 2 * MIB) / total)
    short = graphs.plan(function, sizes, pools=ARRANGEMENTS)
    torch.cuda.set_per_process_memory_fraction((before + largest - 4 * MIB) / total)
    kind = error_of(lambda: graphs.plan(function, sizes))[0]
    torch.cuda.set_per_process_memory_fraction(1.0)
    measured = [one.is_measured for one in short.sets.values()]
    close = [
        0.8 < short.sets[pools].reserved_bytes / planned.sets[pools].reserved_bytes <= 1.25
        for pools in ARRANGEMENTS
    ]
    same = short.captures == planned.captures
    return measured, same, close, kind, reserved() - before


@check
def graphs_that_exist():
    warmed_up()
    with CaptureGuard() as guard:  # keeps what PyTorch allocates for the first graph
        take(KIB).zero_()
    before = reserved()
    kept = []
    for rows in BATCHES:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = STEPS["large"](rows)
        kept.append((graph, results))
    apart = reserved() - before
    untouched = everything()
    planned = graphs.plan([graph for graph, _ in kept])
    same = everything() == untouched
    group = graphs.exclusive(*(graph for graph, _ in kept))
    together = reserved() - before
    refused = error_of(lambda one=kept[0][0]: graphs.plan(one))[0]
    right = [
        planned.sets["separate"].reserved_bytes == apart,
        is_close(planned.sets["exclusive"].reserved_bytes, together),
        [one.is_measured for one in planned.sets.values()],
    ]
    # The graphs are in one pool, or have left the group.
    group.leave(*(graph for graph, _ in kept))
    del group
    again = graphs.plan(kept[0][0], pools=["separate"]).captures[0].reserved_bytes
    right.append(again == planned.captures[0].reserved_bytes)
    del kept, results, graph
    left = reserved() - before
    guard.graph.launch()
    return same, right, refused, left


@check
def a_graphed_callable_is_a_graph():
    sample = take(MIB)
    callable_ = graphs.make_graphed_callable(torch.clone, (sample,))
    planned = graphs.plan(callable_)
    return len(planned.captures), planned.captures[0].results_bytes // MIB, list(planned.sets)


@check
def arguments_have_names():
    tokens = torch.zeros(8, 3, device="cuda")
    planned = graphs.plan(lambda *args: take(KIB).zero_(), [8, (tokens, "x"), ()])
    planned_once = graphs.plan(lambda: take(KIB).zero_())
    names = [capture.name for capture in (*planned.captures, *planned_once.captures)]
    lines = str(planned).splitlines()
    return names, [line.split("  ")[0] for line in lines[4:]]


@check
def what_cannot_be_planned_is_refused():
    def one(rows):
        return take(rows * KIB).zero_()

    wrong = [
        lambda: graphs.plan(7),
        lambda: graphs.plan([]),
        lambda: graphs.plan([one]),
        lambda: graphs.plan(one, []),
        lambda: graphs.plan(one, take(4)),
        lambda: graphs.plan(one, 4),
        lambda: graphs.plan(one, [4], pools=["seperate"]),
        lambda: graphs.plan(one, [4], num_warmup_iters=-1),
        lambda: graphs.plan(one, [4], stream=3),
        lambda: graphs.plan(one, [4], capture_error_mode="local"),
    ]
    with CaptureGuard() as guard:
        take(KIB).zero_()
        wrong_now = error_of(lambda: graphs.plan(one, [4]))
    wrong.append(lambda: graphs.plan(guard.graph, [4]))
    wrong.append(lambda: graphs.plan(guard.graph, pools=["shared"]))
    errors = [error_of(call)[0] for call in wrong]
    good = graphs.plan(guard.graph).captures[0].reserved_bytes
    return sorted({*errors}), len(errors), wrong_now[0], good == 2 * MIB


@check
def a_plan_needs_ferro_alloc():
    config = ferro_alloc.status().config
    ferro_alloc.uninstall()
    try:
        kind, text = error_of(lambda: graphs.plan(STEPS["tiny"], [1]))
    finally:
        ferro_alloc.install(config)
    return kind, "ferro_alloc.install()" in text


finish()
