"""The errors for arguments of the wrong type, raised before a function has any effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ferro_alloc
from ferro_alloc import FerroError, graphs

WRONG: dict[str, Any] = {"a number": 3, "a list": [], "bytes": b"x"}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (ferro_alloc.report_on_oom, "expected the path of a file"),
        (graphs.debug, "expected True or False"),
        (graphs.graph_pool_handle, "expected a name"),
        (lambda wrong: graphs.exclusive(name=wrong), "expected a name"),
        (lambda wrong: graphs.exclusive(ordered=wrong), "True or False"),
        (ferro_alloc.tag, "expected a name of one line"),
    ],
    ids=["report_on_oom", "debug", "graph_pool_handle", "name", "ordered", "tag"],
)
def test_error_has_the_value_and_what_was_expected(
    call: Callable[[Any], Any], expected: str, wrong: Any
) -> None:
    with pytest.raises(FerroError, match=expected) as raised:
        call(wrong)
    assert repr(wrong) in str(raised.value)


def test_install_takes_true_or_false_for_strict() -> None:
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="strict='yes': expected True or False"):
        ferro_alloc.install(strict=wrong)
    assert not ferro_alloc.is_installed()
