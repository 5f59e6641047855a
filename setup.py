"""Builds the two native parts of ferro_alloc; everything else is in pyproject.toml.

* `ferro_alloc._C`, the PyTorch extension. It uses C++ classes of torch, so it is compiled against
  the torch that is installed and works with that minor version only; `ferro_alloc/_build_info.py`
  records which one.
* The libraries of the simulated GPU, `ferro_alloc/sim/lib/*.so.*`, built by CMake. They need
  neither torch nor a driver.

A source distribution and the metadata need no torch. The edit loop is
`python setup.py build_ext --inplace`, which rebuilds only what changed.
"""

from __future__ import annotations

import filecmp
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import cast

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.install import install

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
EXTENSION_SOURCES = (
    "ferro/base",
    "ferro/driver",
    "ferro/core",
    "ferro/graph",
    "ferro/adapter",
    "python",
)
EXTENSION = "ferro_alloc._C"
STARTUP = "ferro_alloc.pth"
TORCH_NEEDED = (
    "ferro_alloc is compiled against the torch that it will run with: install torch first, then "
    "run `pip install --no-build-isolation .`"
)

# ninja and cmake from the same environment are found although it was never activated.
os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")


def cuda_wheel() -> Path | None:
    """The folder of NVIDIA's CUDA wheels that torch depends on, as in .../nvidia/cu13."""
    spec = importlib.util.find_spec("nvidia")
    for entry in spec.submodule_search_locations or () if spec else ():
        for folder in sorted(Path(entry).glob("cu[0-9]*")):
            return folder
    return None


def cuda_roots() -> list[Path]:
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [Path(name) for name in named if name] + [w for w in [cuda_wheel()] if w]


def cuda_version(include: Path) -> str:
    """Of the CUDA headers in that folder, as "13.0"; empty where there are none."""
    header = include / "cuda.h"
    found = (
        re.search(r"#define CUDA_VERSION (\d+)", header.read_text()) if header.exists() else None
    )
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""


def cuda_include(major: int) -> Path:
    """The first complete set of CUDA headers of that major version."""
    lacking = f"{major}.0"
    for root in cuda_roots():
        include = root / "include"
        version = cuda_version(include)
        if version.split(".")[0] != str(major):
            continue
        # The runtime wheel comes without crt/; nvidia-cuda-crt adds it.
        if (include / "crt/host_defines.h").exists():
            return include
        lacking = version
    raise SystemExit(
        f"no complete CUDA {major} headers were found: set CUDA_HOME, or install them with "
        f"`pip install 'nvidia-cuda-runtime=={lacking}.*' 'nvidia-cuda-crt=={lacking}.*'`"
    )


def cuda_runtime(major: int) -> Path:
    """libcudart of that major version; the wheel has it under its versioned name only."""
    for root in reversed(cuda_roots()):
        for folder in ("lib", "lib64"):
            library = root / folder / f"libcudart.so.{major}"
            if library.exists():
                return library
    raise SystemExit(f"libcudart.so.{major} was not found: torch for CUDA {major} installs it")


def extension_sources() -> list[str]:
    found = [path for part in EXTENSION_SOURCES for path in (CSRC / part).rglob("*.cpp")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def minor_version(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def supported_torch() -> tuple[tuple[int, int], tuple[int, int]]:
    """The first minor version that pyproject.toml allows, and the first that it doesn't."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for dependency in project["dependencies"]:
        if found := re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", dependency):
            return minor_version(found[1]), minor_version(found[2])
    raise SystemExit("pyproject.toml names no range of torch")


def configure_extension(extension: Extension) -> None:
    """Adds what depends on the installed torch."""
    import torch
    from torch.utils import cpp_extension

    oldest, limit = supported_torch()
    if not oldest <= minor_version(torch.__version__) < limit:
        raise SystemExit(
            f"ferro_alloc supports torch {oldest[0]}.{oldest[1]} to {limit[0]}.{limit[1] - 1}, and "
            f"torch {torch.__version__} is installed: install a torch of that range first"
        )
    if torch.version.cuda is None:
        raise SystemExit(f"torch {torch.__version__} was built without CUDA; ferro_alloc needs it")
    major = int(torch.version.cuda.split(".")[0])
    system = [*cpp_extension.include_paths(), str(cuda_include(major))]
    strict = ["-Werror"] if (ROOT / ".git").exists() or "FERRO_STRICT" in os.environ else []
    extension.include_dirs = [str(CSRC)]
    extension.define_macros = [("FERRO_TORCH_VERSION", f'"{torch.__version__}"')]
    # System headers, so that the warnings are about our code. They are errors in a checkout only:
    # a source distribution must not fail on the taste of an unknown compiler.
    extension.extra_compile_args = [
        *[f"-isystem{path}" for path in system],
        *["-std=c++20", "-O2", "-g1", "-fvisibility=hidden", "-Wall", "-Wextra", *strict],
        # GCC 12 sees overlapping copies in the concatenation of strings where there are none.
        *["-Wno-unknown-warning-option", "-Wno-restrict"],
    ]
    extension.library_dirs = [str(path) for path in cpp_extension.library_paths()]
    extension.libraries = ["c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"]
    # The shared C++ runtime by its versioned name, as torch has it loaded. Some toolchains link the
    # static one unless told, and a second copy inside the extension crashes in its locales.
    extension.extra_link_args = [
        str(cuda_runtime(major)),
        "-Wl,-O1,--as-needed",
        "-l:libstdc++.so.6",
    ]


class Build(build_ext):
    """Builds both parts; refuses in one sentence when torch is absent."""

    def run(self) -> None:
        # It warns about an absent GPU, which building does not need.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        try:
            import torch
            from torch.utils.cpp_extension import BuildExtension
        except ImportError as error:
            raise SystemExit(TORCH_NEEDED) from error
        package = ROOT if self.inplace else Path(self.build_lib).absolute()
        for extension in self.extensions:
            configure_extension(extension)
        # torch's command brings ninja, hence a rebuild of changed files only.
        command = BuildExtension(self.distribution)
        command.ensure_finalized()
        for name in ("inplace", "build_lib", "build_temp", "force", "parallel", "debug"):
            setattr(command, name, getattr(self, name))
        command.editable_mode = self.editable_mode
        command.extensions = self.extensions
        command.run()
        self._record_torch(package, torch.__version__, str(torch.version.cuda))
        self._build_simulator(package, int(str(torch.version.cuda or "0").split(".")[0]))

    def _record_torch(self, package: Path, version: str, cuda: str) -> None:
        target = package / "ferro_alloc" / "_build_info.py"
        text = (
            '"""Written by setup.py: what `_C` was compiled for."""\n\n'
            f'TORCH_VERSION = "{version}"\nCUDA_VERSION = "{cuda}"\n'
        )
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def _build_simulator(self, package: Path, cuda_major: int) -> None:
        cmake = shutil.which("cmake")
        if cmake is None:
            raise SystemExit("cmake was not found; install it with `pip install cmake`")
        tree = Path(self.build_temp).absolute() / "sim"
        built = tree / "lib"
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "FERRO_BUILD_TESTS": "OFF",
            "FERRO_CUDA_INCLUDE": cuda_include(cuda_major),
            "FERRO_SIM_OUTPUT": built,
        }
        configured = tree / "ferro_settings.txt"
        wanted = "".join(f"{name}={value}\n" for name, value in settings.items())
        if not configured.exists() or configured.read_text() != wanted:
            generator = ["-GNinja"] if shutil.which("ninja") else []
            defines = [f"-D{name}={value}" for name, value in settings.items()]
            fresh = [cmake, "-S", str(ROOT), "-B", str(tree), *generator, *defines]
            self._cmake(fresh)
            configured.write_text(wanted)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        build = [cmake, "--build", str(tree), "--target", "ferro_sim_libraries", "-j", jobs]
        self._cmake(build)
        self._copy_newer(built, package / "ferro_alloc" / "sim" / "lib")

    def _cmake(self, command: list[str]) -> None:
        if subprocess.run(command).returncode != 0:
            raise SystemExit("the simulated GPU could not be built; CMake's messages are above")

    def _copy_newer(self, source: Path, target: Path) -> None:
        """Replaces files rather than writing into them: a running program may have them mapped."""
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            copy = target / path.name
            if path.is_symlink() or not copy.exists() or not filecmp.cmp(path, copy):
                fresh = target / f".{path.name}.new"
                shutil.copy2(path, fresh, follow_symlinks=False)
                fresh.replace(copy)


class Modules(build_py):
    """Adds the file that Python reads when it starts, beside the package."""

    def run(self) -> None:
        super().run()
        # What an editable wheel is made of besides links is put where an install would put it.
        installation = cast(install, self.get_finalized_command("install"))
        folder = installation.install_lib if self.editable_mode else self.build_lib
        self.copy_file(str(ROOT / STARTUP), str(Path(str(folder)) / STARTUP))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        startup = [] if self.editable_mode else [str(Path(self.build_lib) / STARTUP)]
        return [*super().get_outputs(include_bytecode), *startup]


def check_wheel_command() -> None:
    """Early, and in one sentence: setuptools has its own command from 70.1 on."""
    wanted = {"bdist_wheel", "dist_info"} & set(sys.argv)
    older = minor_version(setuptools.__version__) < (70, 1)
    if wanted and older and importlib.util.find_spec("wheel") is None:
        raise SystemExit(
            f"setuptools {setuptools.__version__} makes wheels with the package `wheel`, which is "
            "not installed: run `pip install wheel`, or `pip install -U setuptools`"
        )


def main() -> None:
    check_wheel_command()
    extension = Extension(EXTENSION, sources=extension_sources(), language="c++")
    # distutils relinks when one of these is newer than the module.
    extension.depends = sorted(str(path) for path in CSRC.rglob("*.h"))
    commands = {"build_ext": Build, "build_py": Modules}
    setup(license="Apache-2.0", ext_modules=[extension], cmdclass=commands)


if __name__ == "__main__":
    main()
