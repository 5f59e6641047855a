"""The pytest plugin: suites under ferro_alloc, on a simulated GPU, with limits of GPU memory.

Every pytest in an environment with ferro_alloc imports this module, so it imports only pytest and
names. A suite that uses none of the options, markers and fixtures loads no other module of the
plugin. See docs/pytest.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from ferro_alloc.pytest_plugin._names import COMPARE, FIXTURE, LIMIT

if TYPE_CHECKING:
    from ferro_alloc.pytest_plugin._meter import GpuMemory
    from ferro_alloc.pytest_plugin._session import Session

_MARKERS = (
    f"{LIMIT}(size): fails the test if its peak of allocated GPU memory exceeds the size, as in "
    f'{LIMIT}("2GiB")',
    f"{COMPARE}: with --ferro-compare the test runs under native, expandable segments and "
    "ferro_alloc, each in its own process",
)
_active: Session | None = None


def _install_form(text: str) -> str:
    if text not in ("on", "strict"):
        raise argparse.ArgumentTypeError(
            f"expected strict, on or no value, found '{text}': write --ferro-alloc=on if a path "
            "follows it"
        )
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ferro_alloc", "ferro_alloc: GPU memory")
    group.addoption(
        "--ferro-alloc",
        nargs="?",
        const="on",
        type=_install_form,
        metavar="strict",
        help="run the tests under ferro_alloc; with strict, end the run if it cannot be installed",
    )
    group.addoption(
        "--ferro-simulate",
        metavar="CARD",
        help="run the tests on a simulated GPU, as in h100",
    )
    group.addoption(
        "--ferro-compare",
        action="store_true",
        help=f"run tests marked {COMPARE} under three allocators and compare their peaks",
    )
    group.addoption(
        "--gpu-memory-leaks",
        action="store_true",
        help="fail tests that leave more live GPU memory than they found",
    )
    # For the processes of --ferro-compare.
    group.addoption("--ferro-measured", help=argparse.SUPPRESS)
    group.addoption("--ferro-measured-file", help=argparse.SUPPRESS)
    group.addoption("--ferro-measured-test", help=argparse.SUPPRESS)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepares the process before a conftest.py can import torch."""
    _begin(early_config.known_args_namespace, is_late=False)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.ferro_measured:
        from ferro_alloc.pytest_plugin import _compare

        _compare.isolate(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    _begin(config.option, is_late=True)
    if _active is not None:
        _active.configure(config)


def _begin(options: argparse.Namespace, is_late: bool) -> None:
    names = ("ferro_alloc", "ferro_simulate", "ferro_compare", "gpu_memory_leaks", "ferro_measured")
    if _active is None and any(getattr(options, name, None) for name in names):
        _load(options, is_late)


def _load(options: argparse.Namespace, is_late: bool = True) -> Session:
    global _active
    if _active is None:
        from ferro_alloc.pytest_plugin._session import Session

        session = Session(options)
        session.prepare(is_late)
        _active = session
    return _active


def pytest_unconfigure() -> None:
    """A process may run pytest again (pytest.main), with other options."""
    global _active
    _active = None
    if "ferro_alloc.pytest_plugin._unjudged" in sys.modules:
        from ferro_alloc.pytest_plugin import _unjudged

        _unjudged.clear()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(LIMIT) is not None:
            _load(config.option).check_limit(item)


def _uses(item: pytest.Item) -> bool:
    names: list[str] = getattr(item, "fixturenames", [])
    return _active is not None or FIXTURE in names


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    return None if _active is None else _active.compare(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    if _uses(item):
        _load(item.config.option).begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    if _active is None or fixturedef.scope == "function":
        return (yield)
    with _active.wider_fixture():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if _active is not None:
        _active.judge_peak(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if _active is not None:
        _active.judge_leaks(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if _active is not None:
        _active.note(item, call)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _active is not None:
        _active.see(report)
    elif any(name.startswith("gpu_memory_") for name, _ in report.user_properties):
        # The controller of xdist collects no tests, and learns from reports that one was measured.
        from ferro_alloc.pytest_plugin import _unjudged

        _unjudged.see(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _active is not None:
        _active.finish(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["ferro_alloc_arguments"] = list(node.config.invocation_params.args)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if _active is not None:
        _active.merge(getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _active is not None:
        _active.summarise(terminalreporter)
    elif "ferro_alloc.pytest_plugin._unjudged" in sys.modules:
        from ferro_alloc.pytest_plugin import _unjudged

        _unjudged.summarise(terminalreporter)


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """The GPU memory of this test so far; skips the test without a GPU."""
    return _load(request.config.option).memory_of(request.node)
