"""`record_history()`: the requests that have stacks, and the use of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferro_alloc.snapshots import _trace
from ferro_alloc.snapshots._findings import find
from tests.conftest import RunSimulated

MIB = 1 << 20


@pytest.mark.long
def test_large_requests_have_stacks_and_few_small_ones(
    run_simulated: RunSimulated, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    done = run_simulated("sampled.py", "ferro_alloc", str(snapshot), gpu="h100", backing=False)
    found = json.loads(done.stdout.splitlines()[-1])
    # 64 KiB of 1 MiB: the expected number is 20,000 (1 - exp(-1/16)) = 1,212, with a deviation of
    # 34.
    assert 1000 < found["small"] < 1420
    assert found["large"] == 5
    assert (found["all"], found["PyTorch's own"]) == (100, 100)
    assert found["skipped"]
    assert found["line"][1] == 3 * 64 * MIB
    assert found["line"][0].endswith(" take")
    assert found["refused"] == [True, True, True]
    # A replay needs neither stacks nor the times at which blocks were released.
    findings = find(_trace.read(_trace.load(snapshot), 0), tries=False, cards=False)
    assert findings.trace.allocator == "ferro_alloc"
    assert findings.own.outcome.peak_reserved_bytes == findings.recorded_peak


def test_under_native_all_have_stacks(run_simulated: RunSimulated, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    done = run_simulated("sampled.py", "native", str(snapshot), gpu="h100", backing=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["small"], found["large"], found["all"]) == (20_000, 5, 100)
    assert found["skipped"]
