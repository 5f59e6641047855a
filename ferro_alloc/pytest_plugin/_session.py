"""One run of pytest that uses an option, a marker or the fixture of the plugin."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from ferro_alloc._errors import FerroError
from ferro_alloc.pytest_plugin._compare import Comparison
from ferro_alloc.pytest_plugin._meter import Block, GpuMemory, Meter
from ferro_alloc.pytest_plugin._names import COMPARE, FIXTURE, LIMIT
from ferro_alloc.pytest_plugin._text import size_text
from ferro_alloc.pytest_plugin._unjudged import PROPERTY, Unjudged

if TYPE_CHECKING:
    from ferro_alloc.sim._missing import Missed


class Session:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        # A worker of xdist has the controller's options, and no `workerinput` before it is set up.
        self._is_worker = bool(os.environ.get("PYTEST_XDIST_WORKER"))
        self._lines: list[str] = []
        self._missed: Missed | None = None
        """What the simulated cards of all processes could not do; None if no process used one."""
        self._meters: dict[pytest.Item, Meter] = {}
        self._running: Meter | None = None
        self._wider: set[Block] = set()
        self._limits: dict[str, int] = {}
        self._failed: set[str] = set()
        self._comparison = Comparison(options)
        self._unjudged = Unjudged()

    # ---- the process

    def prepare(self, is_late: bool) -> None:
        """Activates the simulated GPU and installs the allocator. Late is after the conftest.py
        files of the run were loaded."""
        if self._options.ferro_simulate:
            self._simulate(self._options.ferro_simulate, is_late)
        if self._options.ferro_measured:
            from ferro_alloc.fit import _allocators

            _allocators.choose(self._options.ferro_measured)
        elif self._options.ferro_alloc:
            self._install(is_strict=self._options.ferro_alloc == "strict")

    def _distributes(self) -> bool:
        """Whether this is a controller of xdist, which runs no test."""
        names = ("numprocesses", "tx")
        return not self._is_worker and any(getattr(self._options, name, None) for name in names)

    def _simulate(self, card: str, is_late: bool) -> None:
        from ferro_alloc import sim
        from ferro_alloc.sim.cards import find_card

        if is_late and "torch" in sys.modules and not sim.is_active():
            # A controller of xdist refuses too, because its workers load the same files.
            raise pytest.UsageError(
                "--ferro-simulate: expected the plugin to be loaded before torch, found a "
                "conftest.py that imports torch first: load the plugin with "
                "-p ferro_alloc.pytest_plugin"
            )
        try:
            find_card(card)
            if not self._distributes():
                sim.activate(gpu=card)
        except FerroError as error:
            raise pytest.UsageError(f"--ferro-simulate: {error}") from None

    def _install(self, is_strict: bool) -> None:
        from ferro_alloc import _load, allocator
        from ferro_alloc.config import Config

        try:
            if self._distributes():
                Config.from_env()
                _load.check_versions(_load.built_for(), _load.running_torch())
                if self._options.ferro_simulate:
                    return
            allocator.install(strict=is_strict)
        except (FerroError, ValueError) as error:
            if is_strict:
                raise pytest.UsageError(f"--ferro-alloc=strict: {error}") from None
            self._lines.append(
                f"warning: {error}; the tests ran under PyTorch's own allocator (--ferro-alloc)"
            )

    def configure(self, config: pytest.Config) -> None:
        self._is_worker = hasattr(config, "workerinput")
        if self._distributes() and self._options.ferro_simulate:
            # A test of a worker may run pytest with workers of its own: these have their own cards.
            os.environ.pop("FERRO_ALLOC_SIM", None)
        self._comparison.configure(config)

    # ---- a test

    def check_limit(self, item: pytest.Item) -> None:
        """Raises `pytest.UsageError` for an invalid limit."""
        marker = item.get_closest_marker(LIMIT)
        if marker is None:
            return
        from ferro_alloc.sim.cards import SIZE_FORMS, parse_size

        where = f"{item.nodeid}: {LIMIT}"
        if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
            given = ", ".join(map(repr, marker.args))
            raise pytest.UsageError(f"{where}({given}): expected one size as text: {SIZE_FORMS}")
        try:
            self._limits[item.nodeid] = parse_size(marker.args[0], "limit")
        except FerroError as error:
            raise pytest.UsageError(f"{where}({marker.args[0]!r}): {error}") from None

    def refuse_late_limit(self, item: pytest.Item) -> None:
        """Fails a test whose limit a fixture or another hook added: its memory was not measured."""
        if item.nodeid not in self._limits:
            pytest.fail(
                f"{LIMIT} was added after the collection of the tests, so it cannot be judged: add "
                "it to the test, or in pytest_collection_modifyitems",
                pytrace=False,
            )

    def compare(self, item: pytest.Item) -> bool | None:
        if item.get_closest_marker(COMPARE) is None:
            return None
        return self._comparison.run(item)

    def begin(self, item: pytest.Item) -> None:
        limit = item.nodeid in self._limits
        leaks = self._options.gpu_memory_leaks
        if leaks and self._failed:
            _release_traceback()
        has_fixture = FIXTURE in getattr(item, "fixturenames", ())
        peaks = limit or has_fixture or bool(self._options.ferro_measured)
        if not peaks and not leaks:
            return
        meter = self._meters[item] = self._meter(
            peaks=peaks, traced=limit, leaks=leaks, required=limit or leaks or has_fixture
        )
        self._running = meter
        if meter.problem and (limit or leaks):
            item.user_properties.append((PROPERTY, meter.problem))

    def _meter(self, peaks: bool, traced: bool, leaks: bool, required: bool) -> Meter:
        return Meter(peaks, traced=traced, leaks=leaks, required=required, wider=self._wider)

    def memory_of(self, item: pytest.Item) -> GpuMemory:
        if item not in self._meters:
            # The test asked for the fixture while it ran.
            self._meters[item] = self._meter(peaks=True, traced=False, leaks=False, required=True)
        meter = self._meters[item]
        if meter.problem:
            pytest.skip(f"{FIXTURE}: {meter.problem}")
        meter.begin_peaks()
        return GpuMemory(meter)

    @contextmanager
    def wider_fixture(self) -> Iterator[None]:
        with self._running.wider_fixture() if self._running is not None else nullcontext():
            yield

    def judge_peak(self, item: pytest.Item) -> None:
        """Fails a test that passed and exceeded its limit."""
        meter = self._meters.get(item)
        limit = self._limits.get(item.nodeid)
        if meter is None or limit is None or meter.problem:
            return
        peak = meter.peak("allocated_bytes")
        if peak > limit:
            lines = [
                f"the peak of allocated GPU memory is {size_text(peak)}, and the limit is "
                f"{size_text(limit)}: free memory earlier, or raise the limit",
                "held at the peak, by line:",
                *meter.holders_at_peak(),
            ]
            pytest.fail("\n".join(lines), pytrace=False)

    def note(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None:
            self._failed.add(item.nodeid)

    def add_numbers(self, item: pytest.Item) -> None:
        """Adds the numbers to the properties of the test."""
        meter = self._meters.get(item)
        if meter is None or not meter.has_peaks:
            return
        if self._options.ferro_measured:
            self._comparison.note(meter.properties())
        else:
            item.user_properties.extend(meter.properties().items())

    def judge_leaks(self, item: pytest.Item) -> None:
        meter = self._meters.pop(item, None)
        self._running = None
        if meter is None:
            return
        try:
            # The traceback of a failed test keeps its tensors.
            if self._options.gpu_memory_leaks and item.nodeid not in self._failed:
                getattr(item, "funcargs", {}).clear()
                if getattr(item, "_instance", None) is not None:
                    # pytest creates both again if the test is repeated.
                    item._instance = item._obj = None  # type: ignore[attr-defined]
                size, lines = meter.leaked()
                if size > 0:
                    item.user_properties.append(("gpu_memory_leaked_bytes", size))
                    text = f"the test leaves {size_text(size)} of GPU memory that it did not find:"
                    pytest.fail("\n".join([text, *lines]), pytrace=False)
        finally:
            meter.end()

    def see(self, report: pytest.TestReport) -> None:
        self._unjudged.see(report)
        self._comparison.see(report)

    def see_warning(self, found: warnings.WarningMessage) -> None:
        self._comparison.see_warning(found)

    def judge_subtests(self, report: pytest.TestReport) -> None:
        self._comparison.judge_subtests(report)

    # ---- the end

    def finish(self, config: pytest.Config) -> None:
        # A process that did not import torch did not use the card.
        if self._options.ferro_simulate and "torch" in sys.modules and not self._distributes():
            from ferro_alloc.sim import _missing

            self._add_missed(_missing.missed())
        for found in self._comparison.missed():
            self._add_missed(found)
        missed = None if self._missed is None else dataclasses.asdict(self._missed)
        if self._is_worker:
            output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
            output["ferro_alloc_lines"] = self._lines
            output["ferro_alloc_missed"] = missed
        self._comparison.finish(missed)

    def _add_missed(self, found: Missed) -> None:
        if self._missed is None:
            self._missed = found
        else:
            self._missed.add(found)

    def merge(self, output: dict[str, Any]) -> None:
        """Adds what a worker reported; equal lines of workers appear once."""
        self._lines += output.get("ferro_alloc_lines", [])
        if found := output.get("ferro_alloc_missed"):
            from ferro_alloc.sim._missing import Missed

            self._add_missed(Missed(**found))

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        lines = list(dict.fromkeys(self._lines))
        if self._missed is not None:
            lines += self._missed.lines()
        if self._options.ferro_simulate:
            lines.insert(0, f"simulated GPU: {self._options.ferro_simulate}")
        lines += self._unjudged.lines() + self._comparison.lines()
        if lines:
            reporter.section("ferro_alloc")
            for line in lines:
                reporter.line(line)


def _release_traceback() -> None:
    """Frees the tensors of the last failed test. pytest does so too, but after the setup of the
    next test, whose freed memory would then hide a leak."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
