"""The pytest plugin: suites under ferro_alloc, on a simulated GPU, with limits of GPU memory.

Every pytest in an environment with ferro_alloc imports this module, so it imports only pytest and
names. A suite that uses none of the options, markers and fixtures loads no other module of the
plugin. See docs/pytest.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from ferro_alloc.pytest_plugin._names import COMPARE, FIXTURE, LIMIT

if TYPE_CHECKING:
    from ferro_alloc.pytest_plugin._meter import GpuMemory
    from ferro_alloc.pytest_plugin._session import Session
    from ferro_alloc.pytest_plugin._unjudged import Unjudged

_MARKERS = (
    f"{LIMIT}(size): fails the test if its peak of allocated GPU memory exceeds the size, as in "
    f'{LIMIT}("2GiB")',
    f"{COMPARE}: with --ferro-compare the test runs under native, expandable segments and "
    "ferro_alloc, each in its own process",
)
# Each run of pytest in a process has its own, also one within a test of another
# (`pytester.inline_run`).
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
# The controller of xdist collects no tests, and learns from reports that one was measured.
_UNJUDGED: pytest.StashKey[Unjudged] = pytest.StashKey()


def _install_form(text: str) -> str:
    if text not in ("on", "strict"):
        raise argparse.ArgumentTypeError(
            f"expected strict, on or no value, found '{text}': write --ferro-alloc=on if a path "
            "follows it"
        )
    return text


def _card(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a card, as in h100, found no text")
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
        type=_card,
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
    _begin(early_config, early_config.known_args_namespace, is_late=False)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.ferro_measured:
        from ferro_alloc.pytest_plugin import _compare

        _compare.isolate(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    _begin(config, config.option, is_late=True)
    if (active := _active(config)) is not None:
        active.configure(config)
    config.pluginmanager.register(_Reports(config), "ferro_alloc reports")


def _active(config: pytest.Config) -> Session | None:
    return config.stash.get(_SESSION, None)


def _begin(config: pytest.Config, options: argparse.Namespace, is_late: bool) -> None:
    names = ("ferro_alloc", "ferro_simulate", "ferro_compare", "gpu_memory_leaks", "ferro_measured")
    if any(getattr(options, name, None) for name in names):
        _load(config, options, is_late)


def _load(config: pytest.Config, options: argparse.Namespace, is_late: bool = True) -> Session:
    if _SESSION not in config.stash:
        from ferro_alloc.pytest_plugin._session import Session

        session = Session(options)
        session.prepare(is_late)
        config.stash[_SESSION] = session
    return config.stash[_SESSION]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Reads the limits after every `pytest_collection_modifyitems`, which may add some."""
    for item in session.items:
        if item.get_closest_marker(LIMIT) is not None:
            _load(session.config, session.config.option).check_limit(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    active = _active(item.config)
    return None if active is None else active.compare(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    if FIXTURE in getattr(item, "fixturenames", []):
        _load(item.config, item.config.option)
    if (active := _active(item.config)) is not None:
        active.begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    active = _active(request.config)
    if active is None or fixturedef.scope == "function":
        return (yield)
    with active.wider_fixture():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if item.get_closest_marker(LIMIT) is not None:
        _load(item.config, item.config.option).refuse_late_limit(item)
    try:
        result = yield
    finally:
        # Subtests are reported before the call ends, so these are not added with a report.
        if (active := _active(item.config)) is not None:
            active.add_numbers(item)
    if active is not None:
        active.judge_peak(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if (active := _active(item.config)) is not None:
        active.judge_leaks(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if (active := _active(item.config)) is not None:
        active.note(item, call)
    return (yield)


class _Reports:
    """Hooks that are called without a configuration, and so of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (active := _active(self._config)) is not None:
            active.see(report)
        elif any(name.startswith("gpu_memory_") for name, _ in report.user_properties):
            from ferro_alloc.pytest_plugin._unjudged import Unjudged

            self._config.stash.setdefault(_UNJUDGED, Unjudged()).see(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when == "runtest" and (active := _active(self._config)) is not None:
            active.see_warning(warning_message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> None:
        if (active := _active(self._config)) is not None:
            active.judge_subtests(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if (active := _active(session.config)) is not None:
        active.finish(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["ferro_alloc_arguments"] = list(node.config.invocation_params.args)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if (active := _active(node.config)) is not None:
        active.merge(getattr(node, "workeroutput", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (active := _active(config)) is not None:
        active.summarise(terminalreporter)
    elif _UNJUDGED in config.stash:
        config.stash[_UNJUDGED].summarise(terminalreporter)


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """The GPU memory of this test so far; skips the test without a GPU."""
    return _load(request.config, request.config.option).memory_of(request.node)
