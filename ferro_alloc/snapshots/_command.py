"""The `replay` command: what would have helped the program of a snapshot."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ferro_alloc._errors import FerroError, check_file
from ferro_alloc.snapshots import _trace
from ferro_alloc.snapshots._findings import find


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc replay",
        description=(
            "Replays a snapshot of torch.cuda.memory._dump_snapshot() under PyTorch's native "
            "allocator, its expandable segments and ferro_alloc, on a simulated GPU, and reports "
            "how much memory each would have taken. Needs no GPU."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("snapshot", type=Path, help="the pickle")
    parser.add_argument("--device", type=int, help="one device only (default: all with events)")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    parser.add_argument(
        "--quick", action="store_true", help="only the three allocators: no settings, no cards"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page of HTML")
    parser.add_argument(
        "--before", type=Path, metavar="SNAPSHOT", help="another one, side by side in the report"
    )
    return parser


def main(argv: list[str]) -> int:
    """Returns the exit status: 0, 1 for a refusal in one sentence, 2 for a wrong command line."""
    arguments = parser()
    parsed = arguments.parse_args(argv)
    if parsed.before is not None and parsed.report is None:
        arguments.error("--before is shown in a report: give --report FILE as well")
    try:
        if parsed.report is not None:
            check_file(
                parsed.report,
                others={"the snapshot": parsed.snapshot, "that of --before": parsed.before},
            )
        snapshot = _trace.load(parsed.snapshot)
        there = [index for index, trace in enumerate(snapshot["device_traces"]) if trace]
        devices = there if parsed.device is None else [parsed.device]
        if not there or not set(devices) <= set(there):
            raise FerroError(
                f"{parsed.snapshot} has events of the devices {there}: call "
                "torch.cuda.memory._record_memory_history() before what is to be recorded"
            )
        found = [
            find(_trace.read(snapshot, device), tries=not parsed.quick, cards=not parsed.quick)
            for device in devices
        ]
        if parsed.report is not None:
            from ferro_alloc.snapshots._report import write

            before = None if parsed.before is None else _trace.load(parsed.before)
            write(parsed.report, snapshot, before=before, findings=found)
    except FerroError as error:
        print(f"ferro_alloc: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps([findings.as_json() for findings in found], indent=1))
    else:
        print("\n\n".join(map(str, found)))
    return 0
