"""The contents of a source distribution and of a wheel."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ferro_alloc._version import __version__

ROOT = Path(__file__).resolve().parents[2]
IGNORED = (".git", ".venv", "build", "dist", "demo-out", "*.egg-info", "__pycache__", ".*_cache")

# Runs the build back end's hook, as pip would, without fetching anything.
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('dist'))"

SIMULATED_LIBRARIES = (
    *("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"),
    *("libnvidia-ml.so.1", "libnccl.so.2", "libcudnn.so.9", "libcudart-stand-in.so"),
    *("libcufft.so.12", "libcusparse.so.12", "libcusolver.so.12"),
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, because building leaves files; it includes files that were built in
    place."""
    target = tmp_path_factory.mktemp("package") / "checkout"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*IGNORED), symlinks=True)
    (target / "dist").mkdir()
    return target


def build(checkout: Path, hook: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, hook], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(checkout: Path) -> set[str]:
    with tarfile.open(build(checkout, "build_sdist")) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_sdist_has_every_source(sdist: set[str], checkout: Path) -> None:
    wanted = {
        path.relative_to(checkout).as_posix()
        for folder in ("csrc", "ferro_alloc", "tests", "benchmarks", "tools")
        for path in (checkout / folder).rglob("*")
        if path.suffix
        in (
            ".h",
            ".cpp",
            ".map",
            ".def",
            ".py",
            ".pyi",
            ".txt",
            ".sh",
            ".typed",
            ".html",
            ".css",
            ".js",
        )
    }
    wanted.discard("ferro_alloc/_build_info.py")
    assert wanted - sdist == set()
    assert {"LICENSE", "README.md", "setup.py", "CMakeLists.txt", "Makefile", ".ci/run"} <= sdist


def test_sdist_has_nothing_built(sdist: set[str]) -> None:
    built = {name for name in sdist if ".so" in name or name.endswith((".o", ".pyc"))}
    assert built == set()
    assert "ferro_alloc/_build_info.py" not in sdist


def test_metadata_needs_no_torch(checkout: Path) -> None:
    """torch is hidden, as it is in pip's isolated build environment."""
    hide = "import sys; sys.modules['torch'] = None; "
    command = [sys.executable, "-c", hide + BUILD, "prepare_metadata_for_build_wheel"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    metadata = checkout / "dist" / done.stdout.splitlines()[-1]
    entry_points = (metadata / "entry_points.txt").read_text()
    assert "ferro_alloc = ferro_alloc.pytest_plugin" in entry_points
    assert "ferro_alloc = ferro_alloc.vllm_plugin:register" in entry_points


@pytest.fixture(params=[pytest.param("65.5.0", marks=pytest.mark.long), "66.1.1"])
def older_setuptools(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment with the setuptools of Python 3.11 and of Debian 12, and with `wheel`."""
    wanted = [f"setuptools=={request.param}", "wheel==0.48.0"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--retries=0", "--timeout=20"]
    done = subprocess.run(
        [*command, "--target", str(tmp_path), *wanted], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no package index is in reach: {done.stderr.strip()[-100:]}")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_older_setuptools_read_the_metadata(
    older_setuptools: dict[str, str], checkout: Path
) -> None:
    # Their hook expects its own folder of metadata, and no other.
    for folder in (checkout / "dist").glob("*.dist-info"):
        shutil.rmtree(folder)
    command = [sys.executable, "-c", BUILD, "prepare_metadata_for_build_wheel"]
    done = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, env=older_setuptools
    )
    assert done.returncode == 0, done.stdout + done.stderr
    metadata = (checkout / "dist" / done.stdout.splitlines()[-1] / "METADATA").read_text()
    assert "\nLicense: Apache-2.0\n" in metadata
    assert "\nLicense-File: LICENSE\n" in metadata

    hide = "import sys; sys.modules['wheel'] = None; "
    command = [sys.executable, "-c", hide + BUILD, "build_wheel"]
    done = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, env=older_setuptools
    )
    assert done.returncode != 0
    assert "run `pip install wheel`" in done.stderr.strip().splitlines()[-1]


def test_building_without_torch_fails_with_one_sentence(checkout: Path) -> None:
    hide = "import sys; sys.modules['torch'] = None; "
    command = [sys.executable, "-c", hide + BUILD, "build_wheel"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "install torch first" in last
    assert "Traceback" not in done.stderr


def test_what_is_missing_is_named_before_anything_is_compiled(checkout: Path) -> None:
    command = [sys.executable, "-c", BUILD, "build_wheel"]
    env = {**os.environ, "CXX": "no-such-compiler"}
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=env)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "cannot be compiled without a compiler of C++20" in last
    assert "`no-such-compiler` is none" in last
    assert "Traceback" not in done.stderr
    assert not list((checkout / "build").rglob("*.o"))


def test_editable_wheel_has_the_startup_file(checkout: Path) -> None:
    """Leaves out the extension, which would be compiled completely in a new folder."""
    program = "import setup; setup.Build.run = lambda self: None; setup.main()"
    command = [sys.executable, "-c", program, "-q", "editable_wheel", "--dist-dir", "editable"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (checkout / "editable").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        assert any(name.startswith("__editable__.ferro_alloc-") for name in archive.namelist())
        assert archive.read("ferro_alloc.pth") == (ROOT / "ferro_alloc.pth").read_bytes()


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout itself, whose build folder has the objects already."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    command += ["build", "--build-lib", str(folder / "lib")]
    command += ["bdist_wheel", "--bdist-dir", str(folder / "tree"), "--dist-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> set[str]:
    with zipfile.ZipFile(wheel_file) as archive:
        return set(archive.namelist())


def test_wheel_names_the_torch_that_it_was_built_for(wheel_file: Path) -> None:
    minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    with zipfile.ZipFile(wheel_file) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode().splitlines()
    assert f"Version: {__version__}+torch{minor}" in metadata
    assert f"Requires-Dist: torch=={minor}.*" in metadata


def test_wheel_has_the_package_and_only_it(wheel: set[str]) -> None:
    packaged = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ferro_alloc").rglob("*")
        if path.suffix in (".py", ".pyi", ".html", ".css", ".js") or path.name == "py.typed"
    }
    libraries = {f"ferro_alloc/sim/lib/{name}" for name in SIMULATED_LIBRARIES}
    assert packaged | libraries | {"ferro_alloc/_build_info.py"} <= wheel
    assert any(name.startswith("ferro_alloc/_C.") and name.endswith(".so") for name in wheel)
    strays = {name for name in wheel if not name.startswith(("ferro_alloc/", "ferro_alloc-"))}
    assert strays == {"ferro_alloc.pth"}
