"""`python -m ferro_alloc top`: the memory of this machine's processes that run under ferro_alloc.

Each process listens on its own named socket and reports its numbers to processes of its user and of
root (csrc/ferro/adapter/ipc/status_server.h), without a thread of the program itself. Processes
are found in /proc/net/unix, which lists no processes of other network namespaces.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc._status import size_text

VERSION = "3"
_NAME = re.compile(r"@ferro_alloc-status-(\d+)$")
_MOST_BYTES = 1 << 18
_PATIENCE_S = 1.0
_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True)
class DeviceUse:
    """Memory of one process on one device; sizes in bytes."""

    device: int
    layout: str
    allocated_bytes: int
    peak_allocated_bytes: int
    active_bytes: int
    """Allocated, or freed and waiting for another stream."""
    reserved_bytes: int
    peak_reserved_bytes: int
    asleep_bytes: int
    """Device memory that `wake()` would take; not a part of the reserved."""
    asleep_live_bytes: int
    """Allocated bytes that are asleep, so on no reserved memory."""
    stranded_bytes: int
    """Reserved bytes that are free, on pages and segments which also hold live bytes."""
    idle_bytes: int
    """Reserved bytes of pages that back no address."""
    blocks: int
    requests: int
    """Since the program began or reset its statistics."""
    misses: int
    """Requests that took new pages from the driver, or failed (`CacheStats`)."""
    slowest_miss_ns: int
    requests_per_second: float | None = None
    """None without an earlier sample."""
    pools: tuple[tuple[str, int], ...] = ()
    """Names of private pools and their reserved bytes, the largest first."""
    tags: tuple[tuple[str, int], ...] = ()
    """Names of tags and their live bytes, the largest first."""


@dataclass(frozen=True)
class ProcessUse:
    pid: int
    command: str
    active: bool
    """False after `uninstall()`, when memory may be left."""
    devices: tuple[DeviceUse, ...] = ()
    problem: str = ""
    """Why the numbers are unknown, in one sentence."""


def processes() -> list[int]:
    """Ids of all processes that listen."""
    try:
        lines = Path("/proc/net/unix").read_text().splitlines()
    except OSError as error:
        raise FerroError(f"the sockets of this machine cannot be listed: {error}") from error
    return sorted({int(found[1]) for line in lines if (found := _NAME.search(line))})


def ask(pid: int) -> str:
    """The report of a process. Raises OSError if it does not answer within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.connect(f"\0ferro_alloc-status-{pid}")
        said = connection.recv(_MOST_BYTES)
    if not said:
        raise PermissionError("it belongs to another user")
    return said.decode(errors="replace")


def parse(text: str) -> tuple[bool, tuple[DeviceUse, ...]]:
    """Parses the form of csrc/ferro/adapter/allocator/status_text.h; raises ValueError for
    others."""
    devices: dict[int, DeviceUse] = {}
    parts: dict[str, dict[int, list[tuple[str, int]]]] = {"pool": {}, "tag": {}}
    try:
        first, *lines = text.splitlines()
        name, version, active = first.split()
        if (name, version) != ("ferro_alloc", VERSION):
            raise ValueError(f"version {VERSION} was expected")
        for line in lines:
            kind, number, rest = line.split(" ", 2)
            if kind == "device":
                devices[int(number)] = parse_device(int(number), rest)
            elif kind in parts:
                size, name = rest.split(" ", 1)
                parts[kind].setdefault(int(number), []).append((name, int(size)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"its report cannot be read: {error}") from error
    pools, tags = parts["pool"], parts["tag"]
    found = [
        replace(use, pools=tuple(pools.get(n, ())), tags=tuple(tags.get(n, ())))
        for n, use in devices.items()
    ]
    return active == "1", tuple(found)


def parse_device(number: int, text: str) -> DeviceUse:
    layout, *pairs = text.split()
    values: dict[str, Any] = {}
    for pair in pairs:
        name, value = pair.split("=")
        values[name] = int(value)
    return DeviceUse(device=number, layout=layout, **values)


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    # A program given by `-c` may have several lines, which would become rows.
    return " ".join(" ".join(words).split()) or "?"


def look() -> Iterator[ProcessUse]:
    for pid in processes():
        try:
            active, devices = parse(ask(pid))
        except ConnectionRefusedError:
            continue  # it has ended since
        except (OSError, ValueError) as error:
            yield ProcessUse(pid, command_of(pid), False, problem=str(error))
        else:
            yield ProcessUse(pid, command_of(pid), active, devices)


def with_rates(
    now: Sequence[ProcessUse], before: Sequence[ProcessUse], seconds: float
) -> list[ProcessUse]:
    """The same with requests per second since `before`, which is `seconds` earlier."""
    earlier = {(p.pid, d.device): d.requests for p in before for d in p.devices}

    def rated(pid: int, use: DeviceUse) -> DeviceUse:
        since = earlier.get((pid, use.device))
        # A program that resets its statistics begins at 0 again.
        if since is None or use.requests < since:
            return use
        return replace(use, requests_per_second=(use.requests - since) / seconds)

    return [replace(p, devices=tuple(rated(p.pid, use) for use in p.devices)) for p in now]


_OF_REQUESTS = ("REQUESTS/s", "SLOWEST")
_SIZES = ("PID", "GPU", "LIVE", "RESERVED", "FREE", "STRANDED", "ASLEEP", "PEAK")
HEADINGS = (*_SIZES, *_OF_REQUESTS, "COMMAND")


def rows(found: Sequence[ProcessUse], width: int) -> list[str]:
    """A table: a row for each process and device, and for its largest tags and pools."""
    cells: list[tuple[str, ...]] = [HEADINGS]
    for process in found:
        note = "" if process.active else "[uninstalled] "
        text = note + process.command
        if process.problem:
            text = f"{process.command}: {process.problem}"
        if process.problem or not process.devices:
            cells.append((str(process.pid), *["-"] * (len(HEADINGS) - 2), text))
        for use in process.devices:
            rate = use.requests_per_second
            cells.append(
                (
                    str(process.pid),
                    str(use.device),
                    size_text(use.allocated_bytes),
                    size_text(use.reserved_bytes),
                    size_text(use.reserved_bytes - (use.active_bytes - use.asleep_live_bytes)),
                    size_text(use.stranded_bytes),
                    size_text(use.asleep_bytes),
                    size_text(use.peak_reserved_bytes),
                    "-" if rate is None else f"{rate:,.0f}",
                    f"{use.slowest_miss_ns / 1e6:.1f} ms",
                    text,
                )
            )
            cells += part_rows("tag", use.tags, HEADINGS.index("LIVE"))
            cells += part_rows("pool", use.pools, HEADINGS.index("RESERVED"))
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS) - 1)]
    lines = [
        "  ".join([*(row[i].rjust(widths[i]) for i in range(len(widths))), row[-1]])
        for row in cells
    ]
    return [line[:width].rstrip() for line in lines]


def part_rows(
    kind: str, parts: Sequence[tuple[str, int]], column: int
) -> Iterator[tuple[str, ...]]:
    """A row for each of the five largest, and one for the rest."""
    named = [(f"  {kind} {name}", size) for name, size in parts[:5]]
    if len(parts) > 5:
        named.append((f"  {len(parts) - 5} more {kind}s", sum(size for _, size in parts[5:])))
    for text, size in named:
        row = [""] * len(HEADINGS)
        row[column], row[-1] = size_text(size), text
        yield tuple(row)


def as_json(found: Sequence[ProcessUse]) -> str:
    def plain(process: ProcessUse) -> Mapping[str, object]:
        described = asdict(process)
        for use in described["devices"]:
            use["pools"] = [{"name": name, "reserved_bytes": size} for name, size in use["pools"]]
            use["tags"] = [{"name": name, "live_bytes": size} for name, size in use["tags"]]
        return described

    return json.dumps([plain(process) for process in found])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc top",
        description="Shows the memory of processes that run under ferro_alloc: yours, or all of "
        "them for root. FREE is reserved memory that no block uses; STRANDED is the part of FREE "
        "on pages with live blocks; ASLEEP is what wake() takes again for LIVE memory.",
    )
    parser.add_argument("--once", action="store_true", help="show it once")
    parser.add_argument("--json", action="store_true", help="a JSON list for each sample")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    options = parser.parse_args(argv)
    if not options.interval > 0:
        parser.error(f"--interval {options.interval}: expected seconds greater than 0")
    before, looked = list(look()), time.monotonic()
    try:
        while True:
            time.sleep(options.interval)
            now = list(look())
            moment = time.monotonic()
            found = with_rates(now, before, moment - looked)
            before, looked = now, moment
            show(found, options)
            if options.once:
                return 0
    except KeyboardInterrupt:
        return 0


def show(found: Sequence[ProcessUse], options: argparse.Namespace) -> None:
    if options.json:
        print(as_json(found), flush=True)
        return
    terminal = sys.stdout.isatty()
    lines = rows(found, shutil.get_terminal_size((160, 50)).columns if terminal else 500)
    if not found:
        lines = ["none of your processes runs under ferro_alloc and has used a GPU"]
    print((_CLEAR if terminal and not options.once else "") + "\n".join(lines), flush=True)
