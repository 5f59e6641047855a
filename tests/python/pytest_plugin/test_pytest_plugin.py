"""The pytest plugin on small suites that run in separate processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import programs
from tools.gpu import gpu_count

ROOT = Path(__file__).resolve().parents[3]
START = ROOT / "tests" / "start"
PLUGIN = "ferro_alloc.pytest_plugin"
SUITES = programs.find_program("suites.py")

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

class TestWithFixture:
    @pytest.fixture(scope="class")
    def table(self):
        return torch.ones(1 << 20, device="cuda")

    @pytest.mark.gpu_memory_limit("1GiB")
    def test_first(self, table):
        pass

    def test_leaks_as_much_as_the_fixture_frees(self, table):
        kept.append(torch.ones(1 << 20, device="cuda"))

@pytest.mark.gpu_memory_limit("1KiB")
def test_small_limit():
    torch.ones(1 << 10, device="cuda")

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


PRINTS = ("-rs", "--strict-markers", "--junitxml=junit.xml")


def run(folder: Path, suite: str, *options: str, inherits: bool = False) -> Run:
    """Runs pytest as a user does, in a new interpreter. It may inherit a simulated GPU."""
    (folder / "test_suite.py").write_text(suite)
    dropped = {"FERRO_ALLOC", "FERRO_ALLOC_SIM", "FERRO_ALLOC_CONF", "PYTEST_XDIST_WORKER"}
    dropped -= {"FERRO_ALLOC_SIM"} if inherits else set()
    env = {key: value for key, value in os.environ.items() if key not in dropped}
    env |= {"PYTHONPATH": f"{ROOT}:{folder}:{START}", "PYTEST_PLUGINS": PLUGIN}
    command = [sys.executable, "-m", "pytest", *PRINTS, f"--rootdir={folder}", *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    return Run(done.returncode, done.stdout + done.stderr, folder / "junit.xml")


def prepare(folder: Path, suite: str, *options: str, plugin: bool = True) -> Path:
    """Creates a folder for suites.py."""
    folder.mkdir(exist_ok=True)
    (folder / "test_suite.py").write_text(suite)
    # pytest rewrites the asserts of a plugin only in the first run of a process.
    ignored = "-Wignore::pytest.PytestAssertRewriteWarning"
    loaded = ["-p", PLUGIN] if plugin else []
    words = [*PRINTS, f"--rootdir={folder}", *loaded, ignored, *options]
    (folder / "options.json").write_text(json.dumps(words))
    return folder


def run_forked(folder: Path, suite: str, *options: str) -> Run:
    """Runs pytest in a process that has imported torch."""
    prepare(folder, suite, *options)
    return results_of(programs.run_simulated([SUITES, folder], None), folder)[0]


def results_of(done: programs.Completed, *folders: Path) -> list[Run]:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return [
        Run(status, (folder / "output.txt").read_text(), folder / "junit.xml")
        for status, folder in zip(json.loads(done.stdout), folders, strict=True)
    ]


READS = "numbers that seem to decide nothing were not computed, but assumed as zeros: "

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
    "test_first": "passed",
    "test_leaks_as_much_as_the_fixture_frees": "error",
    "test_small_limit": "failure",
    "test_case": "passed",
}


@pytest.mark.parametrize(
    "allocator", [pytest.param("native", marks=pytest.mark.long), "ferro_alloc"]
)
def test_limits_and_leaks(tmp_path: Path, allocator: str) -> None:
    install = ["--ferro-alloc=strict"] if allocator == "ferro_alloc" else []
    done = run_forked(tmp_path, SUITE, "--ferro-simulate=h100", "--gpu-memory-leaks", *install)
    assert done.outcomes() == WITH_LEAKS, done.text
    assert "allocated GPU memory is 16.00 MiB, and the limit is 8.00 MiB" in done.text
    assert re.search(r"16\.00 MiB in 1 block: \S*test_suite\.py:17 test_over", done.text)
    assert "leaves 4.00 MiB of GPU memory that it did not find" in done.text
    assert re.search(r"4\.00 MiB in 1 block: \S*test_suite\.py:34 test_leaks", done.text)
    assert "its own error" in done.text
    assert "simulated GPU: h100" in done.text
    assert "calls that are not simulated: none" in done.text
    numbers = done.properties("test_over")
    assert int(numbers["peak_allocated_bytes"]) == 16 << 20
    assert int(numbers["peak_reserved_bytes"]) >= 16 << 20
    assert int(numbers["allocations"]) == 1
    assert int(numbers["driver_calls"]) > 0
    assert done.properties("test_leaks")["gpu_memory_leaked_bytes"] == str(4 << 20)


def test_workers_have_their_own_cards(tmp_path: Path) -> None:
    """The plugin is prepared before a conftest.py imports torch, also in the controller, for which
    a stand-in suffices."""
    suite = """
import os, time
from pathlib import Path
import pytest, torch

kept = []

def test_takes_most_of_a_card_while_another_worker_does():
    kept.append(torch.empty(60 << 30, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.get_allocator_backend() == "ferro_alloc"
    Path(os.environ["PYTEST_XDIST_WORKER"]).touch()
    while len(list(Path().glob("gw*"))) < 2:
        time.sleep(0.05)

@pytest.mark.gpu_memory_limit("1GiB")
def test_over():
    torch.ones(512 << 20, device="cuda")

def test_reads_values_that_were_not_computed():
    assert torch.ones(1 << 10, 1 << 10, device="cuda").matrix_power(2).sum().item() is not None
"""
    (tmp_path / "conftest.py").write_text(
        "import os, sys, types\n"
        "if 'PYTEST_XDIST_WORKER' not in os.environ:\n"
        "    sys.modules['torch'] = types.ModuleType('torch')\n"
        "import torch\n"
    )
    options = ("-p", PLUGIN, "-n2", "--dist=each", "--ferro-simulate=h100", "--ferro-alloc=strict")
    done = run(tmp_path, suite, *options)
    outcomes = done.outcomes()
    assert outcomes.pop("test_over") == "failure", done.text
    assert set(outcomes.values()) == {"passed"}, done.text
    assert "2 failed, 4 passed" in done.text
    assert re.findall(".*were not computed.*", done.text) == [f"{READS}test_suite.py:20 (2 times)"]
    assert done.text.count("not simulated: ") == 1
    assert int(done.properties("test_over")["peak_allocated_bytes"]) >= 2 << 30


NESTED = """
import pytest, torch
kept = []

def test_runs_another(pytester):
    pytester.makepyfile("def test_inner(): pass")
    words = ("-p", "ferro_alloc.pytest_plugin", *INNER)
    pytester.inline_run(*words).assertoutcome(passed=1)

@pytest.mark.gpu_memory_limit("8MiB")
def test_leaks():
    kept.append(torch.ones(4 << 20, device="cuda"))
"""


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ([], ["--gpu-memory-leaks"]),
        (["--gpu-memory-leaks"], []),
        pytest.param([], [], marks=pytest.mark.long),
        pytest.param(["--gpu-memory-leaks"], ["--gpu-memory-leaks"], marks=pytest.mark.long),
        pytest.param(["--ferro-alloc=misspelt"], [], marks=pytest.mark.long),
        (["--ferro-alloc=misspelt"], ["--gpu-memory-leaks"]),
    ],
)
def test_a_run_within_a_test_has_its_own_session(
    tmp_path: Path, inner: list[str], outer: list[str]
) -> None:
    suite = NESTED.replace("INNER", repr(inner))
    if inner == ["--ferro-alloc=misspelt"]:
        suite = suite.replace(".assertoutcome(passed=1)", ".ret == pytest.ExitCode.USAGE_ERROR")
    done = run_forked(tmp_path, suite, "-p", "pytester", "--ferro-simulate=h100", *outer)
    assert done.outcomes() == {"test_runs_another": "passed", "test_leaks": "failure"}, done.text
    assert "allocated GPU memory is 16.00 MiB, and the limit is 8.00 MiB" in done.text
    assert done.text.count("simulated GPU: h100") == 1


COMPARED = """
import logging
import pytest, torch

def test_other(tmp_path):
    (tmp_path / "file").touch()
    logging.warning("a line of the user's log")

@pytest.mark.gpu_memory_compare
@pytest.mark.parametrize("address", ["http://a//b"])
def test_compared(address):
    x = torch.ones(1 << 20, device="cuda")

@pytest.mark.gpu_memory_compare
def test_fails():
    print("a line of the test")
    torch.ones(1 << 10, 1 << 10, device="cuda").matrix_power(2).sum().item()
    assert torch.cuda.get_allocator_backend() == "native", "another allocator"
"""
# A stand-in for the options of pytest-cov.
COVERAGE = """
from pathlib import Path

def pytest_addoption(parser):
    parser.addoption("--cov", dest="cov_source", action="append")
    parser.addoption("--no-cov", action="store_true")

def pytest_configure(config):
    if config.option.cov_source and not config.option.no_cov:
        with Path("covered.txt").open("a") as file:
            print(config.option.ferro_measured, file=file)
"""
USERS_FILES = ("--basetemp=base", "--log-file=log.txt", "-o", "log_file_level=WARNING")
WRITERS = ("--debug=debug.txt", "-p", "coverage_stand_in", "--cov=test_suite")
ALONE = ("-s", "--pdb", "--lf", "--ff", "--nf", "--sw", "--sw-skip", "--cache-clear", "--maxfail=9")


@pytest.mark.long
@pytest.mark.parametrize("options", [ALONE, ("-n2",)], ids=["alone", "workers"])
def test_compare(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "coverage_stand_in.py").write_text(COVERAGE)
    words = ("-rf", "--ferro-simulate=h100", "--ferro-compare", *USERS_FILES, *WRITERS, *options)
    done = run(tmp_path, COMPARED, *words, "-k", "test_suite.py", "test_suite.py")
    compared = "test_compared[http://a//b]"
    expected = {compared: "passed", "test_fails": "failure", "test_other": "passed"}
    assert done.outcomes() == expected, done.text
    assert re.search(r"peak allocated / reserved +native +expandable +ferro_alloc", done.text)
    row = re.escape(f"test_suite.py::{compared}")
    assert re.search(rf"{row}( +4\.00 MiB / \d+\.00 MiB){{3}}", done.text)
    assert re.search(r"under native: passed\s+under expandable: passed", done.text)
    assert "under ferro_alloc: failed, as above" in done.text
    assert "FAILED test_suite.py::test_fails - AssertionError: another allocator" in done.text
    numbers = done.properties(compared)
    assert numbers["native.peak_allocated_bytes"] == str(4 << 20)
    assert numbers["ferro_alloc.peak_reserved_bytes"] == str(4 << 20)
    # The processes that ran the tests have missed something, and have no files of the run.
    assert f"{READS}test_suite.py:17 (3 times)" in done.text
    assert re.search(r"Captured stdout call -+\s+a line of the test", done.text)
    assert len(list((tmp_path / "base").rglob("file"))) == 1
    assert set((tmp_path / "covered.txt").read_text().split()) == {"None"}
    # pytest-xdist's workers write to this file all at once, also into a character of another.
    debug_text = (tmp_path / "debug.txt").read_text(errors="replace")
    debug = re.search(r"^args=.*", debug_text, re.MULTILINE)
    assert debug is not None
    assert "--ferro-measured" not in debug.group()
    if options == ALONE:
        assert "a line of the user's log" in (tmp_path / "log.txt").read_text()
    failed = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    assert json.loads(failed.read_text()) == {"test_suite.py::test_fails": True}


OUTCOMES = """
import logging, time, warnings
import pytest
pytestmark = pytest.mark.gpu_memory_compare

@pytest.fixture
def breaks_after():
    yield
    raise ValueError("the teardown broke")

@pytest.fixture
def breaks_before():
    raise ValueError("the setup broke")

@pytest.mark.xfail(reason="a known fault")
def test_fails_as_expected():
    assert False

@pytest.mark.xfail(reason="an old fault")
def test_passes_unexpectedly():
    pass

@pytest.mark.xfail(reason="an old fault", strict=True)
def test_passes_unexpectedly_and_strictly():
    pass

@pytest.mark.xfail(reason="it would hang", run=False)
def test_does_not_run(): ...

@pytest.mark.skip(reason="another machine's")
def test_skipped(): ...

def test_skips_before_an_error(breaks_after):
    pytest.skip("its own reason")

def test_passes_before_an_error(breaks_after): ...

def test_fails_before_an_error(breaks_after):
    assert 1 == 2

def test_errs(breaks_before): ...

def test_prints_and_records(record_property):
    print("a line of the test")
    logging.warning("a line of the log")
    warnings.warn("a warning of the test", FutureWarning)
    record_property("pair", (1, 2))
    record_property("numbers", {1, 2})
    time.sleep(0.05)
    raise OSError("the cause\\nmore of it")
"""
SUBTESTS = """
import unittest
import pytest
pytestmark = pytest.mark.gpu_memory_compare

def test_skips_one(subtests):
    with subtests.test("one"):
        pytest.skip("its own reason")

def test_skips_one_and_fails_another(subtests):
    with subtests.test("one"):
        pytest.skip("its own reason")
    with subtests.test("two"):
        assert False

class TestCases(unittest.TestCase):
    def test_case(self):
        with self.subTest("one"):
            self.skipTest("its own reason")
        with self.subTest("two", i=2):
            self.fail()
"""


def summary(done: Run) -> tuple[list[str], list[str]]:
    """The lines of the short summary, and the counts."""
    lines = re.sub(r"^\[gw\d\].*\n", "", done.text, flags=re.MULTILINE)
    kinds = "FAILED|ERROR|SKIPPED|XFAIL|XPASS|SUBFAILED"
    found = re.findall(rf"^(?:{kinds})\b.*", lines, re.MULTILINE)
    counts = re.findall(r"\d+ (?:failed|passed|skipped|xfailed|xpassed|errors?|warnings?)", lines)
    return sorted(found), counts


def cases(done: Run) -> list[object]:
    """The file of --junitxml without what the plugin adds, and which tests took a while."""
    found: list[object] = []
    for case in ET.parse(done.junit).iter("testcase"):
        where = {key: value for key, value in case.attrib.items() if key != "time"}
        own = r"gpu_memory_compared|(native|expandable|ferro_alloc)\.peak_\w+"
        for each in case.iter("property"):
            if not re.fullmatch(own, each.get("name", "")):
                found.append((where, each.attrib))
        for tag in ("failure", "error", "skipped", "system-out", "system-err"):
            for each in case.iter(tag):
                text = (each.text or "").partition("compared allocators")[0].rstrip("\n -")
                text = re.sub("0x[0-9a-f]+", "", text)
                found.append((where, tag, each.attrib, text))
        found.append((where, float(case.get("time", "0")) >= 0.05))
    return found


SHOWS = ("-rA", "-o", "junit_family=xunit1", "-o", "junit_logging=all", "-W", "default")


@pytest.mark.long
@pytest.mark.parametrize("suite", [OUTCOMES, SUBTESTS], ids=["outcomes", "subtests"])
def test_compared_tests_are_reported_as_by_pytest(tmp_path: Path, suite: str) -> None:
    if suite == SUBTESTS and int(pytest.__version__.partition(".")[0]) < 9:
        pytest.skip("pytest 9 has subtests")
    plain = run(tmp_path, suite, *SHOWS, "--ferro-simulate=h100")
    expected = cases(plain)
    done = run(tmp_path, suite, *SHOWS, "--ferro-simulate=h100", "--ferro-compare")
    assert done.status == plain.status == 1, done.text
    assert summary(done) == summary(plain), done.text + plain.text
    assert cases(done) == expected
    if suite == OUTCOMES:
        for text in ("a line of the test", "a line of the log", "FutureWarning: a warning"):
            assert text in done.text
        assert (
            "under native: failed, as above\nunder expandable: failed, in the same way" in done.text
        )
        workers = run(tmp_path, suite, *SHOWS, "--ferro-simulate=h100", "--ferro-compare", "-n2")
        assert sorted(map(str, cases(workers))) == sorted(map(str, expected))
        assert summary(workers)[0] == summary(plain)[0], workers.text


INHERITED = """
import os
import pytest
import ferro_alloc.sim

@pytest.mark.gpu_memory_compare
def test_has_the_same_cards_with_other_memory():
    assert ferro_alloc.sim.description() == "2 x l4 with 8.00 GiB of memory, eager"
    sharing = os.environ["FERRO_ALLOC_SIM"].partition("sharing=")[2]
    with open("sharing.txt", "a") as file:
        print(sharing, file=file)

def test_runs_in_the_process_of_the_run():
    with open("sharing.txt", "a") as file:
        print(os.environ["FERRO_ALLOC_SIM"].partition("sharing=")[2], file=file)
"""


@pytest.mark.parametrize("by", ["variable", pytest.param("conftest", marks=pytest.mark.long)])
def test_compared_tests_have_the_simulated_gpu_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "variable":
        (tmp_path / "sitecustomize.py").write_text(
            "from ferro_alloc._startup import begin\nbegin()\n"
            + (START / "sitecustomize.py").read_text()
        )
        monkeypatch.setenv("FERRO_ALLOC_SIM", "gpu=l4,count=2,memory=8GiB")
    else:
        (tmp_path / "conftest.py").write_text(
            "import ferro_alloc.sim\nferro_alloc.sim.activate('l4', 2, '8GiB')\n"
        )
    done = run(tmp_path, INHERITED, "--ferro-compare", inherits=True)
    assert done.status == 0, done.text
    sharing = (tmp_path / "sharing.txt").read_text().split()
    assert len(sharing) == len(set(sharing)) == 4


GROUPED = """
import pytest

@pytest.mark.gpu_memory_compare
@pytest.mark.xdist_group("group")
@pytest.mark.parametrize("x", ["a@b"])
def test_grouped(x): ...
"""


@pytest.mark.long
def test_compared_tests_have_groups_of_workers(tmp_path: Path) -> None:
    done = run(tmp_path, GROUPED, "--ferro-compare", "-n2", "--dist=loadgroup")
    assert done.status == 0, done.text


DIES = """
import os
import pytest

@pytest.mark.gpu_memory_compare
def test_dies():
    os._exit(3)
"""


@pytest.mark.parametrize("option", ["", "--setup-plan", "--setup-only"])
def test_a_comparison_without_results(tmp_path: Path, option: str) -> None:
    """A process that ends early fails the test; a run that shows tests only starts none."""
    done = run(tmp_path, DIES, "-rf", "--ferro-compare", *filter(None, [option]))
    if option:
        assert done.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.text
        assert "test_dies" in done.text
        assert "peak allocated / reserved" not in done.text
    else:
        assert "FAILED test_suite.py::test_dies" in done.text
        assert "the process ended with 3 before the test did" in done.text
        assert done.properties("test_dies").keys() == {"gpu_memory_compared"}


PEAKS = """
import pytest, torch
import ferro_alloc
MIB = 1 << 20

def take(size):
    torch.empty(size, dtype=torch.uint8, device="cuda")

@pytest.fixture(scope="module", autouse=True)
def whole():
    torch.cuda.reset_peak_memory_stats()
    yield
    assert torch.cuda.max_memory_allocated() == 64 * MIB
    assert torch.cuda.memory_stats()["allocated_bytes.large_pool.peak"] == 64 * MIB
    assert torch.accelerator.max_memory_allocated() == 64 * MIB
    IF_NOT_MEASURED
    torch.cuda.reset_peak_memory_stats()
    take(2 * MIB)
    assert torch.cuda.max_memory_allocated() == 2 * MIB
    if ferro_alloc.is_installed():
        ferro_alloc.device().reset_peak_stats()
        assert torch.cuda.max_memory_allocated() == 0

def test_large():
    take(64 * MIB)

MARK
def test_small():
    take(4 * MIB)

MARK
def test_other():
    take(16 * MIB)
"""
MEASURED = """
@pytest.mark.gpu_memory_limit("9MiB")
def test_within(gpu_memory):
    take(8 * MIB)
    assert gpu_memory.peak_allocated_bytes == 8 * MIB
    assert gpu_memory.peak_reserved_bytes >= 64 * MIB

def test_while_it_runs(request):
    take(8 * MIB)
    gpu_memory = request.getfixturevalue("gpu_memory")
    take(4 * MIB)
    assert gpu_memory.peak_allocated_bytes == 4 * MIB
    assert gpu_memory.allocations == 1

@pytest.mark.gpu_memory_limit("15MiB")
def test_resets_its_own():
    torch.cuda.reset_peak_memory_stats()
    take(64 * MIB)
    torch.cuda.reset_peak_memory_stats()
    take(64 * MIB)
"""
STATUS = (
    "if ferro_alloc.is_installed(): assert ferro_alloc.device().max_memory_allocated == 64 * MIB"
)


@pytest.mark.parametrize("option", ["--ferro-alloc=strict", "--ferro-simulate=h100"])
def test_peaks_of_the_program_stay(tmp_path: Path, option: str) -> None:
    suite = PEAKS.replace("MARK", "").replace("IF_NOT_MEASURED", STATUS)
    done = run_forked(tmp_path, suite, option, "--ferro-simulate=h100")
    assert set(done.outcomes().values()) == {"passed"}, done.text
    assert done.properties("test_small") == {}


@pytest.mark.parametrize("option", ["--ferro-alloc=strict", "--gpu-memory-leaks"])
def test_peaks_of_the_program_stay_beside_those_of_tests(tmp_path: Path, option: str) -> None:
    suite = PEAKS.replace("MARK", '@pytest.mark.gpu_memory_limit("32MiB")')
    suite = suite.replace("IF_NOT_MEASURED", "") + MEASURED
    done = run_forked(tmp_path, suite, option, "--ferro-simulate=h100")
    outcomes = done.outcomes()
    assert outcomes.pop("test_resets_its_own") == "failure", done.text
    assert set(outcomes.values()) == {"passed"}, done.text
    assert done.properties("test_other")["peak_allocated_bytes"] == str(16 << 20)


BEFORE = """
import pytest, torch
kept = []

def test_keeps():
    kept.append(torch.ones(4 << 20, device="cuda"))

@pytest.mark.gpu_memory_limit("8MiB")
def test_over():
    torch.ones(1 << 20, device="cuda")

@pytest.mark.gpu_memory_limit("8MiB")
def test_frees_it():
    more = torch.ones(1 << 20, device="cuda")
    kept.clear()

def test_records():
    kept.append(torch.ones(4 << 20, device="cuda"))
    torch.cuda.memory._record_memory_history()
    kept.append(torch.ones(2 << 20, device="cuda"))

@pytest.mark.gpu_memory_limit("8MiB")
def test_over_with_a_history():
    torch.ones(1 << 20, device="cuda")
"""


@pytest.mark.parametrize(
    "option", ["--ferro-alloc", pytest.param("-q", id="native", marks=pytest.mark.long)]
)
def test_a_limit_names_memory_from_before_the_test(tmp_path: Path, option: str) -> None:
    done = run_forked(tmp_path, BEFORE, option, "--ferro-simulate=h100")
    held = re.findall(r"(\d+)\.00 MiB in 1 block: (?:\S*test_suite\.py:\d+ )?(.*)", done.text)
    before = ("16", "(allocated before the test)")
    assert held == [
        *(before, ("4", "test_over")),
        *(before, ("4", "test_frees_it")),
        ("16", "(allocated before the first event of the history)"),
        *(("8", "test_records"), ("4", "test_over_with_a_history")),
    ], done.text


LATE_LIMITS = """
import pytest, torch

def test_of_a_hook():
    torch.empty(16 << 20, dtype=torch.uint8, device="cuda")

@pytest.fixture
def limited(request):
    request.node.add_marker(pytest.mark.gpu_memory_limit("8MiB"))

def test_of_a_fixture(limited): ...
"""
LATE_HOOK = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[0].add_marker(pytest.mark.gpu_memory_limit("8MiB"))
"""


def test_limits_that_are_added_late_are_judged_or_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(LATE_HOOK)
    found = run(tmp_path, LATE_LIMITS, "--ferro-simulate=h100")
    assert found.outcomes() == {"test_of_a_hook": "failure", "test_of_a_fixture": "failure"}
    assert "the peak of allocated GPU memory is 16.00 MiB" in found.text
    assert "gpu_memory_limit was added after the collection of the tests" in found.text


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


LIMIT_AND_FIXTURE = """
import pytest

@pytest.mark.gpu_memory_limit("8MiB")
def test_limit():
    pass

def test_fixture(gpu_memory):
    pass

def test_fixture_while_it_runs(request):
    request.getfixturevalue("gpu_memory")
"""
FIXTURE_ALONE = """
def test_fixture_while_it_runs(request):
    request.getfixturevalue("gpu_memory")
"""


def check_unjudged(done: Run) -> None:
    assert done.outcomes() == {
        "test_limit": "passed",
        "test_fixture": "skipped",
        "test_fixture_while_it_runs": "skipped",
    }
    assert "gpu_memory: no NVIDIA GPU on this machine" in done.text
    assert "not judged in 1 test: no NVIDIA GPU on this machine" in done.text


@pytest.mark.long
@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_workers_name_the_reason_without_a_gpu(tmp_path: Path) -> None:
    check_unjudged(run(tmp_path, LIMIT_AND_FIXTURE, "-n2"))


BAD_INPUT = [
    (["--ferro-simulate=h1000"], "2GiB", "there is no card 'h1000'"),
    (["--ferro-simulate="], "2GiB", "expected a card, as in h100, found no text"),
    (["--ferro-alloc=strickt"], "2GiB", "expected strict, on or no value, found 'strickt'"),
    (["--ferro-alloc", "test_suite.py"], "2GiB", "write --ferro-alloc=on"),
    ([], "2 apples", "the limit '2 apples' has no unit or is no size: expected 24GiB"),
    ([], "-2GiB", "the limit '-2GiB' has no unit or is no size: expected 24GiB"),
]
RUNS = "def test_runs(): pass"
LATE = f"import torch\npytest_plugins = ['{PLUGIN}']"


@pytest.fixture(scope="module")
def unsimulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One process runs pytest many times, so torch is imported only once."""
    top = tmp_path_factory.mktemp("unsimulated")
    folders = [
        prepare(
            top / f"bad-{number}",
            f"import pytest\n@pytest.mark.gpu_memory_limit({limit!r})\ndef test_runs(): pass",
            *options,
        )
        for number, (options, limit, _) in enumerate(BAD_INPUT)
    ]
    for name, options in (("late", ()), ("late-workers", ("-p", "xdist", "-n2"))):
        folders.append(prepare(top / name, RUNS, *options, "--ferro-simulate=h100", plugin=False))
        (top / name / "conftest.py").write_text(LATE)
    folders += [
        prepare(top / "strict", RUNS, "--ferro-alloc=strict"),
        prepare(top / "goes-on", RUNS, "--ferro-alloc"),
        prepare(top / "unjudged", LIMIT_AND_FIXTURE),
        prepare(top / "fixture", FIXTURE_ALONE),
        prepare(top / "plain", RUNS),
    ]
    done = programs.run([sys.executable, SUITES, *folders])
    return {
        folder.name: result
        for folder, result in zip(folders, results_of(done, *folders), strict=True)
    }


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_without_a_gpu_the_reason_is_named(unsimulated: dict[str, Run]) -> None:
    check_unjudged(unsimulated["unjudged"])
    done = unsimulated["fixture"]
    assert done.outcomes() == {"test_fixture_while_it_runs": "skipped"}, done.text
    assert "gpu_memory: no NVIDIA GPU on this machine" in done.text


def test_the_next_run_of_a_process_starts_clean(unsimulated: dict[str, Run]) -> None:
    assert unsimulated["plain"].status == 0
    assert "ferro_alloc" not in unsimulated["plain"].text.replace(PLUGIN, "")


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_a_refusal(unsimulated: dict[str, Run]) -> None:
    strict = unsimulated["strict"]
    assert strict.status == pytest.ExitCode.USAGE_ERROR
    assert len(strict.text.strip().splitlines()) == 1
    assert "ferro_alloc cannot be installed on this machine" in strict.text


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is here")
def test_without_strict_the_suite_goes_on(unsimulated: dict[str, Run]) -> None:
    done = unsimulated["goes-on"]
    assert done.status == 0, done.text
    assert done.text.count("warning: ") == 1
    assert "the tests ran under PyTorch's own allocator" in done.text


@pytest.mark.parametrize("number", range(len(BAD_INPUT)))
def test_bad_input(unsimulated: dict[str, Run], number: int) -> None:
    done = unsimulated[f"bad-{number}"]
    assert done.status == pytest.ExitCode.USAGE_ERROR, done.text
    assert BAD_INPUT[number][2] in done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize("name", ["late", "late-workers"])
def test_a_plugin_that_loads_after_torch_is_refused(unsimulated: dict[str, Run], name: str) -> None:
    done = unsimulated[name]
    assert done.status == pytest.ExitCode.USAGE_ERROR, done.text
    assert f"load the plugin with -p {PLUGIN}" in done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize("number", [0, 1])
def test_the_workflows_commands_run(tmp_path: Path, number: int) -> None:
    """Runs the commands for a user's suite in docs/pytest.md, in one process and without a GPU."""
    page = (ROOT / "docs/pytest.md").read_text()
    lines = re.findall(r"- run: \.venv/bin/pytest (.*)", page)
    words = lines[number].replace("-n 2", "").split()
    suite = """
import torch

def test_serves():
    torch.ones(4, device="cuda")
    assert torch.cuda.get_allocator_backend() == "ferro_alloc"
"""
    done = run_forked(tmp_path, suite, "--ferro-simulate=h100", *words)
    assert done.status == 0, done.text
    assert len(lines) == 3
    for word in words:
        if word.startswith("--junitxml="):
            assert (tmp_path / word.partition("=")[2]).exists()


def test_the_entry_point_names_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nferro_alloc = "{PLUGIN}"\n' in text
