"""Regions: memory of one name that has pages of its own, so that it can sleep alone.

The memory of a region lies in a `torch.cuda.MemPool` and has a tag. The pool keeps other memory off
its pages; `sleep()` and `wake()` find the memory by its tag.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ferro_alloc import _load, _sleep, _tags, allocator
from ferro_alloc._errors import FerroError

_log = logging.getLogger("ferro_alloc")


class _Entered(threading.local):
    def __init__(self) -> None:
        self.innermost: tuple[str, int] | None = None
        self.streams: set[tuple[int, int]] = set()


class Regions:
    """Keeps the pools of regions. Thread-safe.

    A pool serves one region at a time, because PyTorch refuses to enter a pool twice. Regions that
    are left return it for the next one of the same name and device. When the memory of a name falls
    asleep, its pools are given up: what is free in them returns to the driver, and later regions of
    the name get new ones, whose memory is awake.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[Any]] = {}
        self._times_given_up: Counter[str] = Counter()
        self._entered = _Entered()

    @contextmanager
    def enter(self, name: str, call: str) -> Iterator[None]:
        """Gives memory that this thread requests inside it the tag `name` and pages of that name.

        During a capture the memory lies in the graph's pool and only has the tag. Raises
        `FerroError`, which names `call`, if ferro_alloc does not serve the device from pages.
        """
        import torch

        index = torch.cuda.current_device()
        require_pages(call, index)
        key = (name, index)
        before = self._entered.innermost
        with ExitStack() as stack:
            if before != key and not torch.cuda.is_current_stream_capturing():
                if before is None:
                    self._make_workspaces(index)
                pool, times = self._take(key)
                stack.callback(self._put_back, key, pool, times)
                stack.enter_context(torch.cuda.use_mem_pool(pool))
                stack.callback(setattr, self._entered, "innermost", before)
                self._entered.innermost = key
            stack.enter_context(_tags.tag(name))
            yield

    @contextmanager
    def leave(self, name: str) -> Iterator[None]:
        """Gives memory that this thread requests inside it the tag `name`, apart from any region.

        Its pool is given up at the end.
        """
        import torch

        before = self._entered.innermost
        with ExitStack() as stack:
            if not torch.cuda.is_current_stream_capturing():
                stack.enter_context(torch.cuda.use_mem_pool(torch.cuda.MemPool()))
                stack.callback(setattr, self._entered, "innermost", before)
                self._entered.innermost = None
            stack.enter_context(_tags.tag(name))
            yield

    def give_up_pools(self, names: Iterable[str]) -> None:
        """Returns what is free in the pools to the driver; what is in use stays until its end."""
        given_up = []
        with self._lock:
            for name in names:
                self._times_given_up[name] += 1
                for key in [key for key in self._idle if key[0] == name]:
                    given_up += self._idle.pop(key)
        # Pools release their memory when they are deleted, which needs no lock of ours.
        given_up.clear()

    def _make_workspaces(self, index: int) -> None:
        """Lets PyTorch request cuBLAS's workspaces for this thread and stream outside of regions.

        They serve all later work there, also while a region in which they were first needed sleeps.
        """
        import torch

        stream = (index, torch.cuda.current_stream().cuda_stream)
        if stream in self._entered.streams:
            return
        self._entered.streams.add(stream)
        with torch.no_grad():
            factors = torch.zeros(16, 16, device="cuda")
            # cuBLASLt, which computes it with the sum, has a workspace of its own.
            torch.nn.functional.linear(factors, factors, factors[0])
        torch.cuda.current_blas_handle()

    def _take(self, key: tuple[str, int]) -> tuple[Any, int]:
        import torch

        with self._lock:
            idle = self._idle.get(key)
            pool = idle.pop() if idle else torch.cuda.MemPool()
            return pool, self._times_given_up[key[0]]

    def _put_back(self, key: tuple[str, int], pool: object, times: int) -> None:
        with self._lock:
            if self._times_given_up[key[0]] == times:
                self._idle.setdefault(key, []).append(pool)


def sleep(call: str, kept: Sequence[str], dropped: Sequence[str]) -> None:
    """Puts memory of the names in `kept` to sleep with its contents, that of `dropped` without.

    Logs a warning if some of the memory stays on the device.
    """
    if names := [*kept, *dropped]:
        warn_of_staying(call, _sleep.put_to_sleep(names, True, otherwise=dropped).staying)


def warn_of_staying(call: str, staying: Mapping[str, int]) -> None:
    if staying:
        reasons = ", ".join(
            f"{size / 2**20:,.1f} MiB because {_sleep.WHY_IT_STAYS[why]}"
            for why, size in staying.items()
        )
        _log.warning("%s leaves memory on the device: %s", call, reasons)


def require_installed(call: str) -> None:
    """Raises `FerroError` unless ferro_alloc is or was installed in this process."""
    if not allocator.is_installed() and not _load.load().is_in_place():
        _refuse_without_installation(call)


def require_pages(call: str, index: int) -> None:
    """Raises `FerroError` unless memory that is requested on the device now lies on pages."""
    if not allocator.is_installed():
        _refuse_without_installation(call)
    extension = _load.load()
    if extension.device_report(index)["layout"] != "pages":
        raise FerroError(
            f"{call} needs pages, and device {index} has the layout 'segments', whose memory "
            "cannot sleep: install ferro_alloc with layout 'pages', which is the default"
        )
    if not extension.is_caching():
        raise FerroError(
            f"{call} needs ferro_alloc's pages, and caching is off, so every request is a "
            "cudaMalloc: unset PYTORCH_NO_CUDA_MEMORY_CACHING"
        )


def _refuse_without_installation(call: str) -> None:
    import torch

    raise FerroError(
        f"{call} needs ferro_alloc, and PyTorch's allocator is '"
        f"{torch.cuda.get_allocator_backend()}': call ferro_alloc.install() first, or set "
        "FERRO_ALLOC=1"
    )
