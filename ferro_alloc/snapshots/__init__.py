"""Memory snapshots: what holds the memory, and how much another allocator would have taken.

`report()` writes the page of this process, `write()` the page of any snapshot; see
docs/who-holds-it.md and docs/what-would-have-helped.md.
"""

from ferro_alloc.snapshots._findings import Findings, find
from ferro_alloc.snapshots._leaks import Leak, LeakWatch, leaks
from ferro_alloc.snapshots._on_oom import report_on_oom
from ferro_alloc.snapshots._record import record_history
from ferro_alloc.snapshots._report import report, write
from ferro_alloc.snapshots._trace import Snapshot, Trace, load, read

__all__ = [
    "Findings",
    "Leak",
    "LeakWatch",
    "Snapshot",
    "Trace",
    "find",
    "leaks",
    "load",
    "read",
    "record_history",
    "report",
    "report_on_oom",
    "write",
]
