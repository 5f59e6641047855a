"""The checks of tools/wheels.py on a wheel, and the root in which it tests one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import clean_root, wheel_file, wheels
from tools.results import Result

EXTENSION = "ferro_alloc/_C.cpython-311-x86_64-linux-gnu.so"
VALUES = "ferro_alloc/sim/_values.cpython-311-x86_64-linux-gnu.so"
NAME = "ferro_alloc-0.1.0+torch2.11-cp311-cp311-{}.whl"

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("readelf")), reason="no compiler on this machine"
)


def compile_library(folder: Path, name: str, *flags: str) -> bytes:
    target = folder / "library.so"
    text = f'extern "C" int f{abs(hash(name))}() {{ return 1; }}'
    command = ["g++", "-xc++", "-", "-shared", "-fPIC", *flags, "-o", str(target)]
    subprocess.run(command, input=text, text=True, check=True)
    return target.read_bytes()


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small libraries under the names of those of a wheel."""
    folder = tmp_path_factory.mktemp("libraries")
    paths = [EXTENSION, VALUES, *(f"ferro_alloc/sim/lib/{name}" for name in wheel_file.LIBRARIES)]
    made = {path: compile_library(folder, path, "-s") for path in paths}
    return made | {"ferro_alloc/__init__.py": b"", "ferro_alloc/sim/lib/libcuda.so": b"INPUT()\n"}


def write(folder: Path, contents: dict[str, bytes], platform: str = "linux_x86_64") -> Path:
    path = folder / NAME.format(platform)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


def test_a_good_wheel_has_no_problem(tmp_path: Path, contents: dict[str, bytes]) -> None:
    wheel = write(tmp_path, contents)
    assert len(wheel_file.libraries(wheel)) == 9
    assert wheel_file.problems(wheel) == []


@pytest.mark.parametrize("flags", [[], ["-g"], ["-g", "-Wl,--strip-debug"]])
def test_an_unstripped_library_is_refused(
    tmp_path: Path, contents: dict[str, bytes], flags: list[str]
) -> None:
    unstripped = compile_library(tmp_path, EXTENSION, *flags)
    wheel = write(tmp_path, {**contents, EXTENSION: unstripped})
    assert wheel_file.problems(wheel) == [f"{EXTENSION} is not stripped"]


def test_a_second_copy_is_refused_under_any_name(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    path = "ferro_alloc/sim/lib/libcuda.so.1"
    twice = {**contents, "libcuda.so.1": compile_library(tmp_path, "another", "-s")}
    expected = ["libcuda.so.1 is in the wheel 2 times"]
    assert wheel_file.problems(write(tmp_path, twice)) == expected
    again = "ferro_alloc/sim/lib/libcuda.so"
    wheel = write(tmp_path, {**contents, again: contents[path]})
    assert wheel_file.problems(wheel) == [f"{path}, {again} are the same library"]


def test_a_missing_library_is_named(tmp_path: Path, contents: dict[str, bytes]) -> None:
    kept = {
        n: d for n, d in contents.items() if n not in (EXTENSION, VALUES) and "cublasLt" not in n
    }
    expected = [
        "libcublasLt.so.13 is missing",
        "the extension _C is missing",
        "the extension _values is missing",
    ]
    assert wheel_file.problems(write(tmp_path, kept)) == expected


def test_a_large_wheel_is_refused(tmp_path: Path, contents: dict[str, bytes]) -> None:
    wheel = write(tmp_path, {**contents, "data": bytes(wheel_file.MOST_BYTES)})
    (said,) = wheel_file.problems(wheel)
    assert said.endswith("bytes: expected at most 3,000,000")


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path, contents: dict[str, bytes]) -> None:
    wheel = write(tmp_path, {**contents, EXTENSION: wheel_file.ELF + b"nothing"})
    with pytest.raises(ValueError, match="readelf reads no shared library"):
        wheel_file.problems(wheel)


def test_the_tag_is_added_and_nothing_else(tmp_path: Path, contents: dict[str, bytes]) -> None:
    plain = write(tmp_path, contents)
    tagged = write(tmp_path, contents, "manylinux_2_35_x86_64")
    assert wheel_file.manylinux_tag(tagged) == "manylinux_2_35_x86_64"
    assert wheel_file.repair_problems(plain, tagged) == []
    assert wheel_file.repair_problems(plain, plain) == [f"{plain.name} has no manylinux tag"]
    changed = write(tmp_path, {**contents, EXTENSION: b""}, "manylinux_2_35_x86_64")
    said = ["the libraries are not those that were built"]
    assert wheel_file.repair_problems(plain, changed) == said


def test_one_line_has_all_figures(tmp_path: Path, contents: dict[str, bytes]) -> None:
    wheel = write(tmp_path, contents, "manylinux_2_35_x86_64")
    result = Result("torch 2.11", passed=7)
    said = wheels.line(wheels.Report(result, wheel, 53.2, 101.6, 4.84))
    size = f"{wheel.stat().st_size:,}"
    assert said == (
        f"torch 2.11: 7 passed, 0 failed, 0 skipped; {size} bytes, manylinux_2_35_x86_64, built in "
        "53 s (102 s of processor time), pip install and first use in 4.8 s"
    )


def test_the_clean_root_hides_checkout_settings_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not clean_root.works():
        pytest.skip("this machine lets no program make a root of its own")
    monkeypatch.setenv("FERRO_ALLOC", "1")
    (tmp_path / "program.py").write_text(
        "import os, shutil\n"
        "print(os.getcwd(), os.listdir(), os.listdir(os.environ['HOME']))\n"
        f"print(os.path.exists({str(wheels.ROOT)!r}), shutil.which('g++'))\n"
        "print(sorted(name for name in os.environ if 'FERRO' in name or 'PYTHON' in name))\n"
    )
    done = clean_root.run(Path(sys.prefix), tmp_path, ["/given/program.py"])
    assert (done.ok, done.output) == (True, "/work [] []\nFalse None\n[]\n")
    failing = clean_root.run(Path(sys.prefix), tmp_path, ["-c", "raise SystemExit('no')"])
    assert (failing.ok, failing.output) == (False, "no\n")
