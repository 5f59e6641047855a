"""The cost of ferro_alloc for a start of Python: its .pth file, and FERRO_ALLOC=1.

"idle .pth" is the line of ferro_alloc.pth with FERRO_ALLOC unset, "begin" the same with
FERRO_ALLOC=1, which imports the package, and "install" the part at the end of torch's import. Each
process runs them once; modules that torch imports too count for ferro_alloc. "bare" and "idle" are
whole starts of Python without the line and with it, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness.processes import ROOT
from tools import patience

STARTUP = ROOT / "ferro_alloc.pth"
STARTS, IMPORTS = 60, 9
MOST_IDLE_MS, MOST_ON_MS = 1.0, 60.0

# The line is compiled and run as by the module `site`.
LINE = """\
import sys, time
line = open(sys.argv[1]).read()
started = time.perf_counter()
exec(line)
spent = time.perf_counter() - started
"""
IDLE = LINE + "print(spent * 1e3)\n"
ON = (
    LINE
    + """\
import json
import ferro_alloc.sim
from ferro_alloc import _startup
ferro_alloc.sim.activate(memory="1GiB")
install, times = _startup._armed._after, []
def timed(torch):
    assert "ferro_alloc.allocator" not in sys.modules
    started = time.perf_counter()
    install(torch)
    times.append((time.perf_counter() - started) * 1e3)
_startup._armed._after = timed
import torch
assert ferro_alloc.is_installed()
print(json.dumps({"begin": spent * 1e3, "install": times[0]}))
"""
)


def python(program: str, *, on: bool = False) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FERRO_ALLOC")}
    env |= {"PYTHONPATH": str(ROOT)} | ({"FERRO_ALLOC": "1"} if on else {})
    command = [sys.executable, "-c", program, str(STARTUP)]
    done = patience.run(command, env)
    if done.returncode != 0:
        raise RuntimeError(f"a start of Python failed: {done.stderr.strip()}")
    return done.stdout


def whole_start(program: str) -> float:
    started = time.perf_counter()
    python(program)
    return (time.perf_counter() - started) * 1e3


def measure(starts: int, imports: int) -> Mapping[str, list[float]]:
    """Milliseconds of every run."""
    found: dict[str, list[float]] = {name: [] for name in ("idle .pth", "bare", "idle")}
    bare, idle = "import sys\n", "import sys\nexec(open(sys.argv[1]).read())\n"
    for number in range(starts):
        found["idle .pth"].append(float(python(IDLE)))
        turns = [("bare", bare), ("idle", idle)]
        for name, program in turns if number % 2 else reversed(turns):
            found[name].append(whole_start(program))
    for _ in range(imports):
        parts = json.loads(python(ON, on=True))
        for name, spent in parts.items():
            found.setdefault(name, []).append(spent)
    found["begin and install"] = [
        a + b for a, b in zip(found["begin"], found["install"], strict=True)
    ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--imports", type=int, default=IMPORTS, help="how often torch is imported")
    parser.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    parser.add_argument("--output", type=Path, help="where the milliseconds go, as JSON")
    options = parser.parse_args(argv)
    if options.smoke:
        options.starts, options.imports = 2, 1
    found = measure(options.starts, options.imports)
    for name, runs in found.items():
        print(f"{name:18} {median(runs):8.3f} ms, the median of {len(runs)}")
    if options.output is not None:
        options.output.write_text(json.dumps(found))
    if options.smoke:
        return 0
    within = median(found["idle .pth"]) < MOST_IDLE_MS
    within = within and median(found["begin and install"]) <= MOST_ON_MS
    print(f"{'within' if within else 'beyond'} {MOST_IDLE_MS} ms idle and {MOST_ON_MS} ms on")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
