"""A capture on a card that is nearly full must not give away memory that graphs replay on.

Argument: the allocator: "native", "segments", "pages", or "graph_segments" for pages beside pools
in PyTorch's layout. Prints the outcome of each step: "served" or the type of the error.
"""

import gc
import json
import sys
from collections.abc import Callable

from tests.python.feature_checks import MIB, take
from tests.python.host_bytes import same_bytes

import torch

import ferro_alloc

ALLOCATOR = sys.argv[1]
if ALLOCATOR != "native":
    LAYOUTS = {"segments": {"layout": "segments"}, "graph_segments": {"graph_layout": "segments"}}
    ferro_alloc.install(ferro_alloc.Config(**LAYOUTS.get(ALLOCATOR, {})))

LARGE = 200 * MIB
outcomes: dict[str, str] = {}
beside: list[torch.Tensor] = []


pattern = torch.arange(25 * MIB, dtype=torch.int32).view(torch.uint8)
"""The value in tensors outside the graphs."""
written = take(MIB)
written.copy_(torch.zeros(MIB, dtype=torch.uint8))


def beside_graphs(size: int) -> torch.Tensor:
    tensor = take(size)
    tensor.copy_(pattern[:size])
    return tensor


def write(size: int) -> None:
    """Writes to both ends of a block that is freed at once."""
    block = take(size)
    block[:MIB].copy_(written)
    block[-MIB:].copy_(written)


def make_room_scarce() -> None:
    """Takes most of the free memory, for tensors that no graph uses."""
    for size in (100, 48, 40, 33, 25, 20, 9, 3, 1):
        try:
            while len(beside) < 200:
                beside.append(beside_graphs(size * MIB))
        except torch.OutOfMemoryError:
            continue


def check_beside() -> None:
    torch.cuda.synchronize()
    for tensor in beside:
        assert same_bytes(tensor.cpu(), pattern[: tensor.numel()])


def scratch() -> None:
    """A graph writes and frees a block of each size."""
    for size in range(32, 50, 2):
        write(size * MIB)


def attempt(name: str, request: Callable[[], None]) -> bool:
    try:
        request()
    except RuntimeError as error:
        outcomes[name] = type(error).__name__
        return False
    outcomes[name] = "served"
    return True


def capture(
    name: str, large: bool, pool: tuple[int, int] | None = None
) -> torch.cuda.CUDAGraph | None:
    graph = torch.cuda.CUDAGraph()

    def run() -> None:
        with torch.cuda.graph(graph, pool=pool):
            scratch()
            if large:
                write(LARGE)

    return graph if attempt(name, run) else None


def replay_beside_full_card(graphs: list[torch.cuda.CUDAGraph | None]) -> None:
    make_room_scarce()
    for graph in graphs:
        if graph is not None:
            graph.replay()
    check_beside()
    beside.clear()
    gc.collect()


# A graph that is live while another capture asks for more than the card has.
pool = torch.cuda.MemPool()
first = capture("first", large=False, pool=pool.id)
replay_beside_full_card([first])
torch.cuda.empty_cache()
beside.append(beside_graphs(16 * MIB))
replay_beside_full_card([first, capture("large in a pool of its own", large=True)])
torch.cuda.empty_cache()
beside.append(beside_graphs(16 * MIB))
replay_beside_full_card([first, capture("large in the pool", large=True, pool=pool.id)])
torch.cuda.empty_cache()


# Requests outside captures, in the pool of the live graph.
def eager_in_pool() -> None:
    with torch.cuda.use_mem_pool(pool):
        for size in (LARGE, 48 * MIB, 25 * MIB):
            inside.append(take(size))


inside: list[torch.Tensor] = []
attempt("eager in the pool", eager_in_pool)
replay_beside_full_card([first])
inside.clear()
attempt("eager in the pool again", eager_in_pool)
inside.clear()
torch.cuda.empty_cache()
replay_beside_full_card([first])
print(json.dumps(outcomes))
