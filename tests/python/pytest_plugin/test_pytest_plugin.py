"""The pytest plugin, on small suites that run in their own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.gpu import gpu_count

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = "ferro_alloc.pytest_plugin"

SUITE = """
import unittest
import pytest
torch = pytest.importorskip("torch")
kept = []

@pytest.fixture(scope="module")
def model():
    return torch.ones(1 << 20, device="cuda")

@pytest.fixture
def buffer():
    return torch.ones(1 << 20, device="cuda")

@pytest.mark.gpu_memory_limit("8MiB")
def test_over():
    torch.ones(4 << 20, device="cuda")

@pytest.mark.gpu_memory_limit("512MiB")
def test_under():
    torch.ones(1 << 20, device="cuda")

@pytest.mark.xfail(strict=True)
@pytest.mark.gpu_memory_limit("8MiB")
def test_expected():
    torch.ones(8 << 20, device="cuda")

@pytest.mark.gpu_memory_limit("8MiB")
def test_raises():
    x = torch.ones(16 << 20, device="cuda")
    raise ValueError("its own error")

def test_leaks():
    kept.append(torch.ones(1 << 20, device="cuda"))

def test_replaces():
    kept[:] = [torch.ones(1 << 19, device="cuda"), torch.ones(1 << 19, device="cuda")]

def test_wider_fixture(model):
    a = torch.ones(64, 64, device="cuda")
    torch.mm(a, a)

def test_fixture(buffer, gpu_memory):
    more = buffer + 1
    assert gpu_memory.peak_allocated_bytes >= 8 << 20
    assert gpu_memory.peak_reserved_bytes >= gpu_memory.peak_allocated_bytes
    assert gpu_memory.allocations == 2
    assert gpu_memory.driver_calls >= 0

def test_skips():
    pytest.skip("its own reason")

class TestClass:
    def test_attribute(self):
        self.x = torch.ones(1 << 20, device="cuda")

class Cases(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(4, device="cuda")
    def test_case(self):
        self.assertEqual(self.x[0].item(), 1)
"""


@dataclass(frozen=True)
class Run:
    status: int
    text: str
    junit: Path

    def outcomes(self) -> dict[str, str]:
        """The worst outcome of each test."""
        found: dict[str, str] = {}
        for case in ET.parse(self.junit).iter("testcase"):
            tags = {child.tag for child in case}
            names = [tag for tag in ("failure", "error", "skipped") if tag in tags]
            found[str(case.get("name"))] = names[0] if names else "passed"
        return found

    def properties(self, test: str) -> dict[str, str]:
        return {
            str(each.get("name")): str(each.get("value"))
            for case in ET.parse(self.junit).iter("testcase")
            if case.get("name") == test
            for each in case.iter("property")
        }


def run(folder: Path, suite: str, *options: str) -> Run:
    (folder / "test_suite.py").write_text(suite)
    dropped = ("FERRO_ALLOC", "FERRO_ALLOC_SIM", "FERRO_ALLOC_CONF", "PYTEST_XDIST_WORKER")
    env = {key: value for key, value in os.environ.items() if key not in dropped}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": PLUGIN}
    command = [sys.executable, "-m", "pytest", "-rs", "--strict-markers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", "--junitxml=junit.xml", *options],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
    return Run(done.returncode, done.stdout + done.stderr, folder / "junit.xml")


WITH_LEAKS = {
    "test_over": "failure",
    "test_under": "passed",
    "test_expected": "skipped",
    "test_raises": "failure",
    "test_leaks": "error",
    "test_replaces": "passed",
    "test_wider_fixture": "passed",
    "test_fixture": "passed",
    "test_skips": "skipped",
    "test_attribute": "passed",
    "test_case": "passed",
}


@pytest.mark.parametrize("allocator", ["native", "ferro_alloc"])
def test_limits_and_leaks(tmp_path: Path, allocator: str) -> None:
    install = ["--ferro-alloc=strict"] if allocator == "ferro_alloc" else []
    done = run(tmp_path, SUITE, "--ferro-simulate=h100", "--gpu-memory-leaks", *install)
    assert done.outcomes() == WITH_LEAKS, done.text
    assert "allocated GPU memory is 16.00 MiB, and the limit is 8.00 MiB" in done.text
    assert re.search(r"16\.00 MiB in 1 block: \S*test_suite\.py:17 test_over", done.text)
    assert "leaves 4.00 MiB of GPU memory that it did not find" in done.text
    assert re.search(r"4\.00 MiB in 1 block: \S*test_suite\.py:34 test_leaks", done.text)
    assert "its own error" in done.text
    assert "simulated GPU: h100" in done.text
    assert "not simulated: nothing was missed" in done.text
    numbers = done.properties("test_over")
    assert int(numbers["peak_allocated_bytes"]) == 16 << 20
    assert int(numbers["peak_reserved_bytes"]) >= 16 << 20
    assert int(numbers["allocations"]) == 1
    assert int(numbers["driver_calls"]) > 0
    assert done.properties("test_leaks")["gpu_memory_leaked_bytes"] == str(4 << 20)


def test_workers_have_their_own_cards(tmp_path: Path) -> None:
    suite = """
import pytest, torch

kept = []

def test_takes_most_of_a_card():
    kept.append(torch.empty(60 << 30, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.get_allocator_backend() == "ferro_alloc"

@pytest.mark.gpu_memory_limit("1GiB")
def test_over():
    torch.ones(512 << 20, device="cuda")

def test_takes_most_of_another_card():
    test_takes_most_of_a_card()

def test_reads_values_that_were_not_computed():
    assert torch.ones(1 << 24, device="cuda").sum().item() is not None
"""
    done = run(tmp_path, suite, "-n2", "--ferro-simulate=h100", "--ferro-alloc=strict")
    outcomes = done.outcomes()
    assert outcomes.pop("test_over") == "failure", done.text
    assert set(outcomes.values()) == {"passed"}, done.text
    assert "values taken that were not computed" in done.text
    assert done.text.count("not simulated: ") == 1
    assert int(done.properties("test_over")["peak_allocated_bytes"]) >= 2 << 30


COMPARED = """
import pytest, torch

@pytest.mark.gpu_memory_compare
def test_compared():
    x = torch.ones(1 << 20, device="cuda")

@pytest.mark.gpu_memory_compare
def test_fails():
    assert torch.cuda.get_allocator_backend() == "native", "another allocator"

def test_other():
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "workers"])
def test_compare(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, COMPARED, "--ferro-simulate=h100", "--ferro-compare", *options)
    expected = {"test_compared": "passed", "test_fails": "failure", "test_other": "passed"}
    assert done.outcomes() == expected, done.text
    assert re.search(r"peak allocated / reserved +native +expandable +ferro_alloc", done.text)
    assert re.search(r"test_suite.py::test_compared( +4\.00 MiB / \d+\.00 MiB){3}", done.text)
    assert "under ferro_alloc:" in done.text
    assert "under native:" not in done.text
    numbers = done.properties("test_compared")
    assert numbers["native.peak_allocated_bytes"] == str(4 << 20)
    assert numbers["ferro_alloc.peak_reserved_bytes"] == str(4 << 20)


def test_inactive_without_options(tmp_path: Path) -> None:
    suite = """
import sys

def test_nothing_is_loaded():
    assert "torch" not in sys.modules
    loaded = {name for name in sys.modules if name.startswith("ferro_alloc")}
    assert loaded == {
        "ferro_alloc", "ferro_alloc.pytest_plugin", "ferro_alloc.pytest_plugin._names"
    }
"""
    assert run(tmp_path, suite).status == 0


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
@pytest.mark.parametrize(
    "options", [(), pytest.param(("-n2",), marks=pytest.mark.long)], ids=["alone", "workers"]
)
def test_without_a_gpu_the_reason_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    suite = """
import pytest

@pytest.mark.gpu_memory_limit("8MiB")
def test_limit():
    pass

def test_fixture(gpu_memory):
    pass
"""
    done = run(tmp_path, suite, *options)
    assert done.outcomes() == {"test_limit": "passed", "test_fixture": "skipped"}
    assert "gpu_memory: no NVIDIA GPU on this machine" in done.text
    assert "not judged in 1 test: no NVIDIA GPU on this machine" in done.text


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_a_refusal(tmp_path: Path) -> None:
    suite = "def test_runs(): pass"
    strict = run(tmp_path, suite, "--ferro-alloc=strict")
    assert strict.status == pytest.ExitCode.USAGE_ERROR
    assert len(strict.text.strip().splitlines()) == 1
    assert "ferro_alloc cannot be installed on this machine" in strict.text


@pytest.mark.long
@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_without_strict_the_suite_goes_on(tmp_path: Path) -> None:
    suite = "def test_runs(): pass"
    done = run(tmp_path, suite, "--ferro-alloc")
    assert done.status == 0, done.text
    assert done.text.count("warning: ") == 1
    assert "the tests ran under PyTorch's own allocator" in done.text


@pytest.mark.parametrize(
    ("options", "limit", "sentence"),
    [
        (["--ferro-simulate=h1000"], "2GiB", "there is no card 'h1000'"),
        (["--ferro-alloc=strickt"], "2GiB", "expected strict, on or no value, found 'strickt'"),
        (["--ferro-alloc", "test_suite.py"], "2GiB", "write --ferro-alloc=on"),
        ([], "2 apples", "the memory '2 apples' has no unit or is no size: expected 24GiB"),
        ([], "-2GiB", "the memory '-2GiB' has no unit or is no size: expected 24GiB"),
    ],
)
def test_bad_input(tmp_path: Path, options: list[str], limit: str, sentence: str) -> None:
    suite = f"""
import pytest

@pytest.mark.gpu_memory_limit({limit!r})
def test_runs(): pass
"""
    done = run(tmp_path, suite, *options)
    assert done.status == pytest.ExitCode.USAGE_ERROR, done.text
    assert sentence in done.text
    assert "Traceback" not in done.text


def test_the_entry_point_names_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nferro_alloc = "{PLUGIN}"\n' in text
