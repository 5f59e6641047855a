"""Tests ferro_alloc with the libraries that programs use on top of PyTorch, on the simulated GPU.

    make test-clients                             all of them
    make test-clients CLIENTS="trainer rmm"       these
    python tools/clients.py --rounds 5 trainer    the same, each program five times, in turns

A client has a folder under build/clients: an environment with the packages of its requirements, on
top of the environment of its torch (tools/versions.py), so that torch is not installed again. The
environment is created on first use and kept; without a package index the client is skipped. At the
end a table shows the memory and the time of each client's programs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import versions  # noqa: E402
from tools.execution import Command, tail  # noqa: E402
from tools.results import Result, choose, finish, read_junit, run_each, skip  # noqa: E402
from tools.versions import execute, find_installer, find_python  # noqa: E402

FOLDER = ROOT / "build" / "clients"
TESTS = "tests/python/real_clients"


@dataclass(frozen=True)
class Client:
    name: str
    tests: tuple[str, ...]  # files of TESTS
    torch: str = ""  # minor version; empty: the installed one

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def requirements(self) -> Path:
        """All packages beyond tools/requirements.txt, each with its version."""
        return ROOT / TESTS / "requirements" / f"{self.name}.txt"


CLIENTS = (
    Client("torch_memory_saver", ("test_torch_memory_saver.py",)),
    Client("trainer", ("test_trainer.py",)),
    Client("vllm", ("test_vllm.py",), torch="2.14"),
    Client("vllm_sleep", ("test_vllm_sleep.py",), torch="2.14"),
    Client("deepspeed", ("test_deepspeed.py",)),
    Client("lightning", ("test_lightning.py",)),
    Client("diffusers", ("test_diffusers.py",)),
    Client("torchvision", ("test_torchvision.py",)),
    Client("numba", ("test_numba.py",)),
    Client("rmm", ("test_rmm.py",)),
)


def version_of(client: Client) -> versions.Version | None:
    """The torch that the client runs with; None means the installed one."""
    if client.torch in ("", versions.installed()):
        return None
    return next(known for known in versions.VERSIONS if known.minor == client.torch)


def find_base(client: Client) -> Path | None:
    version = version_of(client)
    return Path(sys.executable) if version is None else find_python(version)


def packages_of(python: Path) -> str:
    """The folder of an environment that contains torch."""
    code = "import importlib.util, pathlib; "
    code += "print(pathlib.Path(importlib.util.find_spec('torch').origin).parents[1])"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def find_environment(client: Client, base: Path) -> Path | None:
    """The interpreter of the client's environment; None if it can't be created."""
    venv, stamp = client.folder / "venv", client.folder / "installed.txt"
    python = venv / "bin" / "python"
    wanted = f"# over {packages_of(base)}\n{client.requirements.read_text()}"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    installer = find_installer()
    if installer is None:
        return None
    log = client.folder / "environment.log"
    made: Command = [installer, "venv", "--clear", "--python", base, venv]
    if not execute(log, made):
        return None
    # Folders of a .pth file come after the environment's own.
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "base.pth").write_text(packages_of(base) + "\n")
    # So processes that a client starts have the simulated GPU, as with an installed package.
    shutil.copy(ROOT / "ferro_alloc.pth", site)
    # The list is complete, so torch and its dependencies are not installed.
    alone = ("--no-deps", "--no-build-isolation")
    fill: Command = [installer, "pip", "install", "--python", python, *alone]
    if not execute(log, [*fill, "--requirements", client.requirements]):
        return None
    stamp.write_text(wanted)
    return python


def run_tests(client: Client, python: Path, tree: Path, rounds: int) -> Result:
    log, report = client.folder / "test.log", client.folder / "test.xml"
    figures = client.folder / "figures.jsonl"
    for path in (report, figures):
        path.unlink(missing_ok=True)
    settings = ("env", f"FERRO_CLIENT_FIGURES={figures}", f"FERRO_CLIENT_ROUNDS={rounds}")
    pytest: Command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    files = [f"{TESTS}/{name}" for name in client.tests]
    if not (ok := execute(log, [*settings, *pytest, f"--junitxml={report}", *files], cwd=tree)):
        print(f"{client.name} failed; the end of {log}:\n{tail(log)}", flush=True)
    if not report.exists():
        return Result(client.name, failed=1)
    return read_junit(client.name, report, ok)


def test(client: Client, rounds: int) -> Result:
    """Tests one client; the logs and figures are in its folder."""
    base = find_base(client)
    if base is None:
        return skip(client.name, f"torch {client.torch} is not here and can't be installed")
    python = find_environment(client, base)
    if python is None:
        return skip(client.name, f"{client.name} is not here and can't be installed")
    version = version_of(client)
    if version is not None and not versions.build(version, base):
        return Result(client.name, failed=1)
    return run_tests(client, python, ROOT if version is None else version.tree, rounds)


def figures_of(client: Client) -> list[dict[str, object]]:
    path = client.folder / "figures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show_figures(clients: Sequence[Client]) -> None:
    """Shows memory and time of each program under each allocator, in MiB and seconds."""
    table = Table("program", "allocator", title="on the simulated GPU")
    memory = ("peak reserved", "reserved less allocated")
    columns = (*memory, "wall time", "by native's", "processor time", "by its")
    for heading in columns:
        table.add_column(heading, justify="right")
    for client in clients:
        for row in figures_of(client):
            table.add_row(*(str(row[key]) for key in ("program", "allocator", *columns)))
    if table.row_count:
        Console(highlight=False, width=120).print(table)


def main() -> int:
    known = {client.name: client for client in CLIENTS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="runs of each program")
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(known)}; all if none is named")
    arguments = parser.parse_args()
    asked = choose("clients", known, arguments.clients)
    total = run_each(asked, lambda name: test(known[name], arguments.rounds))
    show_figures([known[name] for name in asked])
    return finish(total)


if __name__ == "__main__":
    sys.exit(main())
