"""Builds the extension and the simulated GPU in place, and shows how far the build is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools import execution
from tools.progress import Progress

LOG = execution.ROOT / "build" / "build.log"


def main() -> int:
    progress = Progress("build", 0, 0)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    ok = execution.execute(LOG, command, watch=progress.watch, tick=progress.tick)
    progress.end()
    if not ok:
        shown = LOG.relative_to(execution.ROOT)
        print(f"{execution.tail(LOG)}\nthe build failed; all of it is in {shown}", flush=True)
    return int(not ok)


if __name__ == "__main__":
    execution.stop_at_interrupt()
    try:
        sys.exit(main())
    except OSError as error:  # a full disk, or a checkout that cannot be written
        sys.exit(f"the build needs a folder that it can write: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; what was compiled until then need not be compiled again")
