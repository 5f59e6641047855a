"""Runs programs where neither the checkout nor a compiler is visible, as in a small container.

The program gets a separate root with the system's libraries, the interpreter, one environment and
one folder. This needs `unshare` and a kernel that lets users create namespaces. Without them a
program only gets an empty environment, an empty HOME and an empty working folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import patience

# The visible files: the loader and the libraries, and devices that every program may use.
SYSTEM = ("/usr/lib", "/usr/lib64", "/proc", "/sys")
DEVICES = ("null", "zero", "urandom", "random")
# The arguments are the root, then pairs of a path in it and its source.
MOUNT = """\
set -e
root=$1; shift
mount -t tmpfs none "$root"
mkdir -p "$root/etc" "$root/tmp" "$root/home" "$root/work" "$root/dev/shm"
while [ "$1" != -- ]; do
  if [ -d "$2" ]; then mkdir -p "$root$1"; else mkdir -p "$(dirname "$root$1")"; : > "$root$1"; fi
  mount --rbind "$2" "$root$1"; shift 2
done
shift
for name in lib lib64; do
  if [ -L "/$name" ]; then ln -s "usr/$name" "$root/$name"
  else mkdir -p "$root/$name"; mount --rbind "/$name" "$root/$name"; fi
done
if [ -d "$root/usr/lib/gcc" ]; then mount -t tmpfs none "$root/usr/lib/gcc"; fi
exec unshare --root="$root" --wd=/work "$@"
"""


@dataclass(frozen=True)
class Done:
    ok: bool
    output: str


def execute(command: list[str], env: Mapping[str, str], cwd: Path) -> Done:
    done = patience.run(command, env, cwd)
    return Done(done.returncode == 0, done.stdout + done.stderr)


def mounts(venv: Path, folder: Path) -> list[str]:
    places = {name: name for name in SYSTEM if Path(name).is_dir()}
    places |= {f"/dev/{name}": f"/dev/{name}" for name in DEVICES}
    # The directory of the system's interpreter contains compilers too, so only the file is mounted.
    base = Path(sys.base_prefix)
    interpreter = Path(sys.executable).resolve()
    shown = interpreter if base == Path("/usr") else base
    places |= {str(shown): str(shown), "/venv": str(venv), "/given": str(folder)}
    return [word for pair in places.items() for word in pair]


@cache
def works() -> bool:
    """Whether this machine can create such a root."""
    if not shutil.which("unshare"):
        return False
    with tempfile.TemporaryDirectory() as empty:
        return in_root(Path(sys.prefix), Path(empty), ["-c", "import ssl"], {}).ok


def in_root(venv: Path, folder: Path, arguments: list[str], env: Mapping[str, str]) -> Done:
    with tempfile.TemporaryDirectory() as root:
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh"]
        command += [root, *mounts(venv, folder), "--", "/venv/bin/python", *arguments]
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        return execute(command, {"HOME": "/home", "PATH": path, **env}, Path(root))


def run(
    venv: Path,
    folder: Path,
    arguments: list[str],
    env: Mapping[str, str] | None = None,
) -> Done:
    """Runs Python of an environment. In arguments `/given/` stands for the folder."""
    env = env or {}
    if works():
        return in_root(venv, folder, arguments, env)
    with tempfile.TemporaryDirectory() as empty:
        words = [word.replace("/given/", f"{folder}/") for word in arguments]
        command = [str(venv / "bin" / "python"), *words]
        return execute(command, {"HOME": empty, **env}, Path(empty))
