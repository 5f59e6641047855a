"""Memory that sleeps: it returns to the driver while its tensors, graphs and pools stay."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ferro_alloc import _load, _refusals
from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError

if TYPE_CHECKING:
    import torch

WHY_IT_STAYS = {
    "beside": "other memory in use lies on the same pages",
    "exported": "other processes may have mapped it",
    "pinned": "the program pinned it (ferro_alloc.pin)",
    "shared": "graphs use its pages at several addresses",
    "refused": "the driver refused to unmap it",
    "native": "PyTorch's own allocator serves it",
}
"""What the reasons in `SleepReport.staying` mean."""


@dataclass(frozen=True)
class SleepReport:
    """What a `sleep()` or `wake()` did, on all of its devices. Sizes are in bytes."""

    device_bytes: int
    """Device memory that was returned to the driver, or taken again."""
    content_bytes: int
    """Contents that were copied to the host, or back."""
    staying: Mapping[str, int] = field(default_factory=dict)
    """Device memory that was to sleep and stays, by reason (`WHY_IT_STAYS`)."""


@dataclass(frozen=True)
class AsleepMemory:
    """What is asleep now, on all devices asked for. Sizes are in bytes."""

    device_bytes: int
    """Device memory that waking everything takes."""
    content_bytes: int
    """Contents that wait in host memory."""
    host_bytes: int
    """Host memory held for contents, also from earlier sleeps."""
    page_locked_bytes: int
    """Part of `host_bytes` from which copies run at the speed of the bus."""


def sleep(
    tags: str | Iterable[str] | None = None,
    keep: Literal["host", "nothing"] = "host",
    *,
    device: int | str | torch.device | None = None,
    strict: bool = False,
) -> SleepReport:
    """Returns device memory to the driver; tensors, graphs and pools stay, and wait for `wake()`.

        ferro_alloc.sleep()                               # everything; the contents go to the host
        ferro_alloc.sleep("kv cache", keep="nothing")     # its contents are dropped
        ferro_alloc.wake()

    `tags` names the memory (`ferro_alloc.tag`); None is all memory on `device`, also what PyTorch
    itself needs for computing, so name tags to go on with other memory. None as a device is every
    device that PyTorch has used. With `keep="host"` contents wait in host memory, which is
    page-locked if the system allows it, and stays for the next sleep until
    `release_host_memory()`. With `keep="nothing"` they are undefined after `wake()`. Memory that a
    graph replays on but does not keep (its scratch) always sleeps without contents: if `tags` is
    None, or names all that is in use of the graph's pool. It wakes with any of that.

    The host waits for the work that the device has received. Until `wake()` nothing may use the
    memory: a kernel that does ends as with any invalid address, with a CUDA error that the process
    does not survive. A replay of a graph whose pool is asleep raises `FerroError` instead. The
    memory may be freed, new memory may be allocated, and other memory may fall asleep.
    `torch.cuda.memory_allocated` still counts it, `torch.cuda.memory_reserved` does not, and
    snapshots list it.

    Memory sleeps by whole handles, of one page or more: what lies on a handle with other memory in
    use stays, as does the memory that `WHY_IT_STAYS` lists. The report names it. With `strict=True`
    the call refuses instead. A tag that no memory has had yet has nothing to sleep; with
    `strict=True` it is a wrong argument.

    Raises `FerroError` for a wrong argument; and `RuntimeError`, with nothing asleep on that device
    that was not before: while a capture runs, if the host lacks memory, and, with `strict`, if
    something would stay. Devices fall asleep one after the other.
    """
    if keep not in ("host", "nothing"):
        raise FerroError(f"sleep(keep={keep!r}): expected 'host' or 'nothing'")
    names = _names("sleep", tags)
    if strict and names is not None:
        _refuse_unknown(names)
    return put_to_sleep(names, keep == "host", device=device, strict=strict)


def put_to_sleep(
    names: list[str] | None,
    keeps: bool,
    *,
    otherwise: Sequence[str] = (),
    device: int | str | torch.device | None = None,
    strict: bool = False,
) -> SleepReport:
    """Does the work of `sleep()`. `keeps` is whether contents are kept, but not for memory with the
    tags in `otherwise`, for which it means its opposite."""
    extension = _load.load()
    total = _Sum()
    try:
        for index in _devices(device):
            if strict and names is None:
                extension.empty_cache(index)  # native holds only what is in use then
                if native := extension.sleep_view(index)["native_bytes"]:
                    stays = {**_NOTHING, "result": "stays", "staying": {"native": native}}
                    _check(stays, index, total)
            _check(extension.sleep(index, names, keeps, list(otherwise), strict), index, total)
            if names is None and (native := extension.sleep_view(index)["native_bytes"]):
                total.staying["native"] = total.staying.get("native", 0) + native
    finally:
        _follow_pools()
    return total.report()


def wake(
    tags: str | Iterable[str] | None = None, *, device: int | str | torch.device | None = None
) -> SleepReport:
    """Takes device memory for what `sleep()` put to sleep, at the same addresses.

    `tags` and `device` as for `sleep()`; pages that hold memory of several tags wake with any of
    them. When it returns, the contents are back, for all streams.

    Raises `torch.OutOfMemoryError`, and nothing wakes on that device, if it has too little memory:
    the message, and `explain()`, have the missing bytes, the limit and who holds the memory. It can
    be tried again. Raises `RuntimeError` while a capture runs, `FerroError` for a wrong argument.
    Devices wake one after the other.
    """
    names = _names("wake", tags)
    extension = _load.load()
    total = _Sum()
    try:
        for index in _devices(device):
            _check(extension.wake(index, names), index, total)
    finally:
        _follow_pools()
    return total.report()


def asleep(*, device: int | str | torch.device | None = None) -> AsleepMemory:
    """Returns what is asleep on `device`; None is every device that PyTorch has used."""
    extension = _load.load()
    views = [extension.sleep_view(index) for index in _devices(device)]
    return AsleepMemory(
        device_bytes=sum(view["asleep_bytes"] for view in views),
        content_bytes=sum(view["saved_bytes"] for view in views),
        host_bytes=sum(view["host_bytes"] for view in views),
        page_locked_bytes=sum(view["locked_bytes"] for view in views),
    )


def release_host_memory(*, device: int | str | torch.device | None = None) -> int:
    """Returns host memory that keeps no contents to the system. Returns its bytes.

    The next `sleep()` takes it again, which is slower than to have it.
    """
    extension = _load.load()
    return sum(extension.trim_host_memory(index) for index in _devices(device))


_NOTHING: Mapping[str, Any] = {"bytes": 0, "saved_bytes": 0, "missing_bytes": 0, "staying": {}}


class _Sum:
    def __init__(self) -> None:
        self.device_bytes = 0
        self.content_bytes = 0
        self.staying: dict[str, int] = {}

    def report(self) -> SleepReport:
        return SleepReport(self.device_bytes, self.content_bytes, self.staying)


def _check(outcome: Mapping[str, Any], index: int, total: _Sum) -> None:
    result = outcome["result"]
    size: int = outcome["bytes"]
    staying: dict[str, int] = outcome["staying"]
    missing = _mib(outcome["missing_bytes"])
    if result == "busy":
        raise RuntimeError(
            f"device {index} has a CUDA graph capture under way, or this is a callback of an "
            "allocation: call sleep() and wake() outside of both"
        )
    if result == "host":
        raise RuntimeError(
            f"the host lacks {missing} for the contents of device {index}. Nothing fell asleep "
            "there. Free host memory, name fewer tags, or drop contents with keep='nothing'"
        )
    if result == "stays":
        reasons = ", ".join(
            f"{_mib(stays)} because {WHY_IT_STAYS[why]}" for why, stays in staying.items()
        )
        raise RuntimeError(
            f"on device {index} some of the memory cannot sleep: {reasons}. Nothing fell asleep "
            "there, because strict=True"
        )
    if result == "device":
        import torch

        raise torch.OutOfMemoryError(
            f"{outcome['message']}\nwake() needs {_mib(size)} on device {index}, and {missing} of "
            "them are missing. Nothing woke there. Free memory or wake by tags, and call wake() "
            "again"
        )
    total.device_bytes += size
    total.content_bytes += outcome["saved_bytes"]
    for why, stays in staying.items():
        total.staying[why] = total.staying.get(why, 0) + stays


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _names(call: str, tags: object) -> list[str] | None:
    if tags is None:
        return None
    names = [tags] if isinstance(tags, str) else None
    if names is None and isinstance(tags, Iterable):
        names = list(tags)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise FerroError(
            f"{call}(tags={tags!r}): expected the name of a tag, several names, or None for all "
            "memory"
        )
    return names


def _refuse_unknown(names: list[str]) -> None:
    known = _load.load().tag_names()
    for name in names:
        if name not in known:
            raise FerroError(
                f"sleep(strict=True) got the tag {name!r}, which no memory of this process has "
                f"had: expected one of {', '.join(map(repr, known)) or 'none, there is no tag yet'}"
            )


def _devices(device: int | str | torch.device | None) -> list[int]:
    import torch

    if not torch.cuda.is_initialized():
        return []
    if device is not None:
        return [device_index(device)]
    return list(range(torch.cuda.device_count()))


_lock = threading.Lock()


def _follow_pools() -> None:
    """Tells what refuses replays and captures which memory is asleep."""
    import torch

    with _lock:
        if not torch.cuda.is_initialized():
            return
        extension = _load.load()
        devices = range(torch.cuda.device_count())
        _refusals.follow_sleep(
            any(extension.sleep_view(index)["asleep_bytes"] for index in devices),
            {pool for index in devices for pool in extension.asleep_pools(index)},
        )
