"""`graph_order` lets the graphs of a pool replay in any order without a declared group."""

from __future__ import annotations

import pytest

from ferro_alloc import Config
from tests.conftest import RunSimulated
from tests.python.torch_programs import simulated

EXPECTED = {
    "any": {
        "four_graphs_of_a_pool": [True, True, 0],
        "a_pool_with_checkpoints": [True, True],
        "a_pool_that_joins_a_group_later": True,
    },
    # Later graphs keep results in memory that is scratch of earlier graphs.
    "captured": {
        "four_graphs_of_a_pool": [False, True, 0],
        "a_pool_with_checkpoints": [True, False],
        "a_pool_that_joins_a_group_later": True,
    },
}


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("order", EXPECTED)
def test_results_in_any_order(order: str, mode: str) -> None:
    conf = f"graph_order:{order}"
    found = simulated("graph_order.py", "ferro", conf=conf, memory="1GiB", mode=mode)
    assert {name: outcome.get("value", outcome) for name, outcome in found.items()} == EXPECTED[
        order
    ]


def test_the_order_of_captures_is_the_default() -> None:
    assert Config().graph_order == "captured"
    assert Config.parse("graph_order:any") == Config(graph_order="any")
    with pytest.raises(ValueError, match="graph_order is 'random': expected captured or any"):
        Config.parse("graph_order:random")


def test_it_stays_once_there_is_memory(run_simulated: RunSimulated) -> None:
    done = run_simulated(
        "import torch, ferro_alloc\n"
        "ferro_alloc.install()\n"
        "kept = torch.ones(1, device='cuda')\n"
        "ferro_alloc.uninstall()\n"
        "try:\n"
        "    ferro_alloc.install(ferro_alloc.Config(graph_order='any'))\n"
        "except ferro_alloc.FerroError as error:\n"
        "    print('graph_order is captured and not any' in str(error))\n"
    )
    assert done.stdout == "True\n"
