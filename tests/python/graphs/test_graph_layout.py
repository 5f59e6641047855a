"""Memory of graphs that other processes can open by a handle, while all other memory is pages."""

from __future__ import annotations

import pytest

from tests.conftest import RunSimulated
from tests.python.torch_programs import simulated

REFUSED = 1  # cudaErrorInvalidValue


@pytest.mark.parametrize(
    ("how", "graph"), [("nothing", REFUSED), ("setting", 0), ("graph_layout", 0)]
)
def test_memory_of_graphs_can_be_plain(how: str, graph: int) -> None:
    # Memory that the program allocates outside the graph while the setting is off is plain too.
    default = [False, True] if how == "setting" else [True]
    assert simulated("graph_layout.py", how) == {
        "shared": {"before": REFUSED, "graph": graph, "after": REFUSED},
        "expandable": {"default": default, "graph": [graph == REFUSED]},
        "replayed": True,
        "given back": True,
    }


def test_the_layout_of_graphs_can_change_later(run_simulated: RunSimulated) -> None:
    done = run_simulated(
        "import torch, ferro_alloc\n"
        "def kind():\n"
        "    graph = torch.cuda.CUDAGraph()\n"
        "    with torch.cuda.graph(graph):\n"
        "        kept = torch.ones(1 << 20, device='cuda')\n"
        "    found = [s['is_expandable'] for s in torch.cuda.memory_snapshot(graph.pool())]\n"
        "    return found\n"
        "ferro_alloc.install()\n"
        "print(kind())\n"
        "ferro_alloc.uninstall()\n"
        "ferro_alloc.install(ferro_alloc.Config(graph_layout='segments'))\n"
        "print(kind())\n"
    )
    assert done.stdout == "[True]\n[False]\n"
