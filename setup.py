"""Builds the native parts of ferro_alloc, and says what depends on the torch that is here.

* `ferro_alloc._C` and `ferro_alloc.sim._values`, the PyTorch extensions. They use C++ classes of
  torch, so they are compiled against the torch that is installed and work with that minor version
  only. The version of a wheel and what it requires name that torch; `ferro_alloc/_build_info.py`
  records it.
* The libraries of the simulated GPU, `ferro_alloc/sim/lib/*.so.*`. They use neither torch nor a
  driver.

All need a compiler and headers, no build tool. A source distribution needs no torch. The edit loop
is `python setup.py build_ext --inplace`, which rebuilds only what changed.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.install import install

ROOT = Path(__file__).resolve().parent
# pip builds without this folder on the path.
sys.path.insert(0, str(ROOT))
import compiling  # noqa: E402

CSRC = ROOT / "csrc"
# Minor versions of torch, the first and the last.
SUPPORTED = ((2, 11), (2, 15))
# Folders of csrc that each extension is made of.
EXTENSIONS = {"ferro_alloc._C": ("python", "ferro"), "ferro_alloc.sim._values": ("values",)}
# Folders of csrc/ferro that use no torch; C++ programs link their objects too.
TORCH_FREE = ("base", "core", "driver", "graph")
SIM_PARTS = ("", "driver", "graphs", "instruments", "machine", "memory", "settings", "streams")
# Folders of csrc/sim/libraries, and the names that programs ask for. The first serves the others.
SIM_LIBRARIES = {
    "cuda": "libcuda.so.1",
    "cudart": "libcudart.so.13",
    "cublas_lt": "libcublasLt.so.13",
    "cublas": "libcublas.so.13",
    "nvml": "libnvidia-ml.so.1",
    "nccl": "libnccl.so.2",
    "cudnn": "libcudnn.so.9",
    "cufft": "libcufft.so.12",
    "cusparse": "libcusparse.so.12",
    "cusolver": "libcusolver.so.12",
}
# Empty, under a soname that the package replaces with those of copies in wheels.
STAND_IN = "libcudart-stand-in.so"
STAND_IN_SONAME = f"libcudart.{'x' * 242}.so"
# Sources that are no part of their folder's unit. One serves several libraries. The others declare
# what the folder defines, or include with other arguments.
SHARED = "blas_operation"
APART = (SHARED, "operations", "stubs")
STARTUP = "ferro_alloc.pth"
# Bytes of sources, unless a single folder has more. Larger ones would keep other cores waiting.
LARGEST_UNIT = 80_000

# Programs of the same environment, as cmake for the C++ tests, are found without activating it.
os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")


def folders_of(parts: Iterable[Path]) -> list[Path]:
    """The folders below that have sources."""
    return sorted({path.parent for part in parts for path in part.rglob("*.cpp")})


def in_units(folders: Iterable[Path]) -> list[list[Path]]:
    """The folders whose sources are compiled as one, because the headers that they share are most
    of what each would compile: the largest folders first, each in the first unit with room."""
    sizes = {
        folder: sum(path.stat().st_size for path in folder.glob("*.cpp")) for folder in folders
    }
    units: list[list[Path]] = []
    for folder in sorted(sizes, key=lambda each: -sizes[each]):
        for unit in units:
            if sizes[folder] + sum(sizes[each] for each in unit) <= LARGEST_UNIT:
                unit.append(folder)
                break
        else:
            units.append([folder])
    return units


def torch_free_folders() -> list[Path]:
    return folders_of(CSRC / "ferro" / part for part in TORCH_FREE)


# ---- what is here


class Missing(SystemExit):
    """What a build needs and does not find, with what to do about it."""


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
    raise Missing(
        f"complete CUDA {major} headers (set CUDA_HOME, or install them with "
        f"`pip install 'nvidia-cuda-runtime=={lacking}.*' 'nvidia-cuda-crt=={lacking}.*'`)"
    )


def library_include(library: str) -> Path:
    """The headers of NCCL or cuDNN: those that torch was built with, else the system's."""
    spec = importlib.util.find_spec("nvidia")
    wheels = spec.submodule_search_locations or () if spec else ()
    for folder in [*(Path(entry) / library for entry in wheels), *cuda_roots(), Path("/usr")]:
        if (folder / f"include/{library}.h").exists():
            return folder / "include"
    raise Missing(f"{library}.h (`pip install nvidia-{library}-cu13`, which torch installs)")


def nccl_include() -> Path:
    return library_include("nccl")


def cudnn_include() -> Path:
    return library_include("cudnn")


def cuda_runtime(major: int) -> Path:
    """libcudart of that major version; the wheel has it under its versioned name only."""
    for root in reversed(cuda_roots()):
        for folder in ("lib", "lib64"):
            library = root / folder / f"libcudart.so.{major}"
            if library.exists():
                return library
    raise Missing(f"libcudart.so.{major} (torch for CUDA {major} installs it)")


def compiler() -> compiling.Command:
    """$CXX, else the system's."""
    found = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    command = shlex.split(os.environ.get("CXX", "")) or found[:1]
    probe = [*command, "-std=c++20", "-fsyntax-only", "-xc++", "-"]
    text = "#include <source_location>\n#include <span>\nenum class E { a };\nusing enum E;\n"
    works = (
        bool(command)
        and shutil.which(command[0]) is not None
        and subprocess.run(probe, input=text, text=True, capture_output=True).returncode == 0
    )
    if not works:
        refused = f"; `{shlex.join(command)}` is none" if command else ""
        raise Missing(f"a compiler of C++20 (on Debian `apt install g++`{refused})")
    return tuple(command)


def python_include() -> Path:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise Missing(f"{folder}/Python.h (on Debian `apt install python3-dev`)")
    return folder


def check_all(*finders: Callable[[], object]) -> None:
    """Names everything that is missing at once."""
    missing = []
    for find in finders:
        try:
            find()
        except Missing as error:
            missing.append(str(error))
    if missing:
        raise SystemExit(f"ferro_alloc cannot be compiled without {', and '.join(missing)}")


def minor_version(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


class Torch(NamedTuple):
    folder: Path
    version: str
    cuda: str | None

    def is_supported(self) -> bool:
        return SUPPORTED[0] <= minor_version(self.version) <= SUPPORTED[1]


def installed_torch() -> Torch | None:
    """Read without importing it, which would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    said = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, str(said["__version__"]), said.get("cuda"))


def torch_to_build_for() -> Torch:
    torch = installed_torch()
    if torch is None:
        raise SystemExit(
            "ferro_alloc is compiled against the torch that it will run with: install torch first, "
            "then run `pip install --no-build-isolation .`"
        )
    if not torch.is_supported():
        (major, oldest), (_, newest) = SUPPORTED
        raise SystemExit(
            f"ferro_alloc supports torch {major}.{oldest} to {major}.{newest}, and torch "
            f"{torch.version} is installed: install a torch of that range first"
        )
    if torch.cuda is None:
        raise SystemExit(f"torch {torch.version} was built without CUDA; ferro_alloc needs it")
    return torch


# ---- what is built


class Native:
    """The steps of all parts. What they make lies below `tree`, in a checkout and for a wheel."""

    def __init__(self, torch: Torch, tree: Path, stripped: bool) -> None:
        major = minor_version(str(torch.cuda))[0]
        check_all(
            *(compiler, python_include, nccl_include, cudnn_include),
            *(lambda: cuda_include(major), lambda: cuda_runtime(major)),
        )
        self._compiler = compiler()
        self._torch = torch
        self._cuda = cuda_include(major)
        self._libraries = (nccl_include(), cudnn_include())
        self._cudart = cuda_runtime(major)
        self._tree = tree
        self._linked = tree / ("stripped" if stripped else "linked")
        self._link_flags = [*shlex.split(os.environ.get("LDFLAGS", "")), *["-s"] * stripped]
        strict = ["-Werror"] if (ROOT / ".git").exists() or "FERRO_STRICT" in os.environ else []
        # Warnings are errors in a checkout only: a source distribution must not fail on the taste
        # of an unknown compiler.
        self._flags = [
            *["-std=c++20", "-O2", "-g1", "-DNDEBUG", "-fPIC", "-pthread", "-Wall", "-Wextra"],
            # GCC 12 sees overlapping copies in the concatenation of strings where there are none.
            *[*strict, "-Wno-unknown-warning-option", "-Wno-restrict"],
            *shlex.split(os.environ.get("CXXFLAGS", "")),
        ]

    def make(self, files: dict[str, str]) -> tuple[dict[str, Path], list[Path]]:
        """The extensions, of which `files` has the names, and the simulated GPU's libraries."""
        extensions = {name: self._extension_objects(parts) for name, parts in EXTENSIONS.items()}
        every = [step for steps in extensions.values() for step in steps]
        machine = self._machine_objects()
        parts = {
            name: self._sim_objects([CSRC / "sim" / "libraries" / name], "default")
            for name in SIM_LIBRARIES
        }
        compiling.run([*every, *machine, *(step for steps in parts.values() for step in steps)])
        parts["cuda"] += machine
        shared = [step for step in parts["cublas_lt"] if step.target.stem == SHARED]
        for name in ("cublas", "cudnn", "cufft", "cusparse", "cusolver"):
            parts[name] += shared
        driver = self._link_sim("cuda", parts.pop("cuda"))
        compiling.run([driver])
        others = [self._link_sim(name, steps, driver.target) for name, steps in parts.items()]
        linked = {
            name: self._link_extension(files[name], steps) for name, steps in extensions.items()
        }
        compiling.run([*linked.values(), *others])
        (cudart,) = (step.target for step in others if step.target.name == SIM_LIBRARIES["cudart"])
        stand_in = self._link_stand_in(cudart)
        compiling.run([stand_in])
        made = {name: step.target for name, step in linked.items()}
        return made, [step.target for step in (driver, *others, stand_in)]

    def _objects(self, folders: Iterable[Path], flags: Sequence[str]) -> list[compiling.Step]:
        """Of the sources directly in the folders. An object lies in the place of its first one."""
        units: dict[Path, list[Path]] = {}
        for together in in_units(folders):
            place = self._tree / together[0].relative_to(CSRC)
            sources = [path for folder in together for path in sorted(folder.glob("*.cpp"))]
            units |= {place / f"{path.stem}.o": [path] for path in sources if path.stem in APART}
            units[place / "unit.o"] = [path for path in sources if path.stem not in APART]
        return [
            compiling.compile_unit(self._compiler, files, CSRC, target, [*self._flags, *flags])
            for target, files in units.items()
            if files
        ]

    def make_torch_free(self) -> Path:
        """Compiles what uses no torch, for programs that link it. Returns a file that sets the
        variables FERRO_CORE_OBJECTS and FERRO_SIM_OBJECTS of CMake to the objects, and
        FERRO_MAKE_OBJECTS to a command that compiles them again if a source has changed."""
        core = self._core_objects()
        machine = self._machine_objects()
        compiling.run([*core, *machine])
        make = [sys.executable, "-c", "__import__('setup').torch_free_objects()"]
        variables: dict[str, Sequence[object]] = {
            "FERRO_CORE_OBJECTS": [step.target for step in core],
            "FERRO_SIM_OBJECTS": [step.target for step in machine],
            "FERRO_MAKE_OBJECTS": make,
        }
        text = "".join(
            f"set({name} {' '.join(f'[[{value}]]' for value in values)})\n"
            for name, values in variables.items()
        )
        listed = self._tree / "objects.cmake"
        if not listed.exists() or listed.read_text() != text:
            listed.write_text(text)
        return listed

    def _extension_objects(self, parts: Sequence[str]) -> list[compiling.Step]:
        torch = self._torch.folder / "include"
        # System headers, so that the warnings are about our code.
        system = [torch, torch / "torch/csrc/api/include", self._cuda, python_include()]
        version = f'-DFERRO_TORCH_VERSION="{self._torch.version}"'
        flags = [*(f"-isystem{path}" for path in system), "-fvisibility=hidden", version]
        free = torch_free_folders()
        folders = folders_of(CSRC / part for part in parts)
        # The adapter and the Python module, whose headers are torch's, take longest.
        steps = self._objects([folder for folder in folders if folder not in free], flags)
        return [*steps, *(self._core_objects() if "ferro" in parts else [])]

    def _core_objects(self) -> list[compiling.Step]:
        flags = [f"-isystem{self._cuda}", "-fvisibility=hidden", "-Wpedantic"]
        return self._objects(torch_free_folders(), flags)

    def _machine_objects(self) -> list[compiling.Step]:
        return self._sim_objects([CSRC / "sim" / part for part in SIM_PARTS])

    def _sim_objects(
        self, folders: Iterable[Path], visibility: str = "hidden"
    ) -> list[compiling.Step]:
        # Version scripts decide what a library exports.
        shown = [f"-fvisibility={visibility}", "-fvisibility-inlines-hidden"]
        system = [f"-isystem{path}" for path in (self._cuda, *self._libraries)]
        return self._objects(folders, [*system, *shown])

    def _link(
        self, name: str, objects: list[compiling.Step], files: list[Path], flags: list[str]
    ) -> compiling.Step:
        inputs = [*(step.target for step in objects), *files]
        every = [*flags, *self._link_flags]
        return compiling.link(self._compiler, self._linked / name, inputs, every)

    def _link_sim(
        self, folder: str, objects: list[compiling.Step], driver: Path | None = None
    ) -> compiling.Step:
        name = SIM_LIBRARIES[folder]
        (script,) = (CSRC / "sim" / "libraries" / folder).glob("*.map")
        used = [driver] if driver else []
        flags = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-Wl,-z,defs", "-pthread"]
        return self._link(name, objects, [script, *used], [*map(str, used), *flags, "-ldl"])

    def _link_stand_in(self, cudart: Path) -> compiling.Step:
        script = CSRC / "sim" / "libraries" / "cudart" / "libcudart.map"
        flags = [f"-Wl,-soname,{STAND_IN_SONAME}", f"-Wl,--version-script={script}"]
        return self._link(
            STAND_IN, [], [script, cudart], ["-nostdlib", "-Wl,--no-as-needed", str(cudart), *flags]
        )

    def _link_extension(self, name: str, objects: list[compiling.Step]) -> compiling.Step:
        names = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")
        # The shared C++ runtime by its versioned name, as torch has it loaded. Some toolchains link
        # the static one unless told, and a second copy in the extension crashes in its locales.
        flags = [
            *[f"-L{self._torch.folder / 'lib'}", *(f"-l{name}" for name in names)],
            *[str(self._cudart), "-Wl,-O1,--as-needed", "-l:libstdc++.so.6"],
        ]
        return self._link(name, objects, [self._cudart], flags)


def replace_file(source: Path, target: Path) -> None:
    """Never writes into one: a running program may have it mapped."""
    if target.is_symlink() or not target.exists() or not filecmp.cmp(source, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        shutil.copy2(source, fresh)
        fresh.replace(target)


class Build(build_ext):
    """Builds all parts; what is missing comes first, in one sentence."""

    def run(self) -> None:
        torch = torch_to_build_for()
        in_place = bool(self.inplace or self.editable_mode)
        package = ROOT if in_place else Path(self.build_lib).absolute()
        # Of an installed module nobody reads the debug information; a checkout keeps it.
        native = Native(torch, Path(self.build_temp).absolute(), stripped=not in_place)
        modules = {
            name: str(self.get_ext_filename(name))  # type: ignore[no-untyped-call]
            for name in EXTENSIONS
        }
        made, libraries = native.make({name: Path(file).name for name, file in modules.items()})
        for name, file in modules.items():
            replace_file(made[name], package / file)
        self._fill_folder(package / "ferro_alloc" / "sim" / "lib", libraries[0].parent, libraries)
        self._record_torch(package / "ferro_alloc" / "_build_info.py", torch)

    def _fill_folder(self, folder: Path, linked: Path, libraries: list[Path]) -> None:
        # Linkers that are told -lcuda look for this name, and may find a text that names another.
        # A wheel would hold what a symbolic link leads to a second time.
        script = linked / "libcuda.so"
        script.write_text("INPUT(libcuda.so.1)\n")
        files = [*libraries, script]
        for path in files:
            replace_file(path, folder / path.name)
        for path in set(folder.iterdir()) - {folder / path.name for path in files}:
            path.unlink()

    def _record_torch(self, target: Path, torch: Torch) -> None:
        text = (
            '"""Written by setup.py: what `_C` was compiled for."""\n\n'
            f'TORCH_VERSION = "{torch.version}"\nCUDA_VERSION = "{torch.cuda}"\n'
        )
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def torch_free_objects() -> Path:
    """Makes the objects of this checkout that use no torch; see Native.make_torch_free."""
    command = Build(setuptools.Distribution())
    command.ensure_finalized()
    native = Native(torch_to_build_for(), ROOT / command.build_temp, stripped=False)
    return native.make_torch_free()


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


# ---- what depends on the torch that is here


def check_wheel_command() -> None:
    """Early, and in one sentence: setuptools has its own command from 70.1 on."""
    wanted = {"bdist_wheel", "dist_info"} & set(sys.argv)
    older = minor_version(setuptools.__version__) < (70, 1)
    if wanted and older and importlib.util.find_spec("wheel") is None:
        raise SystemExit(
            f"setuptools {setuptools.__version__} makes wheels with the package `wheel`, which is "
            "not installed: run `pip install wheel`, or `pip install -U setuptools`"
        )


def version_and_torch() -> tuple[str, str]:
    """The version, and what is required of torch. A wheel names the minor version of torch that it
    was built for in both; a source distribution is for all of them."""
    version = str(runpy.run_path(str(ROOT / "ferro_alloc" / "_version.py"))["__version__"])
    torch = installed_torch()
    if torch is None or not torch.is_supported() or "sdist" in sys.argv:
        (major, oldest), (_, newest) = SUPPORTED
        return version, f"torch>={major}.{oldest},<{major}.{newest + 1}"
    minor = ".".join(map(str, minor_version(torch.version)))
    return f"{version}+torch{minor}", f"torch=={minor}.*"


def main() -> None:
    check_wheel_command()
    version, torch = version_and_torch()
    setup(
        version=version,
        install_requires=[torch],
        license="Apache-2.0",
        # Build compiles it; setuptools has to know that this is no pure Python.
        ext_modules=[Extension(name, sources=[]) for name in EXTENSIONS],
        cmdclass={"build_ext": Build, "build_py": Modules},
    )


if __name__ == "__main__":
    main()
