"""Tags: names that the program gives to the memory that it requests."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ferro_alloc import _load
from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError
from ferro_alloc.sizes import checked_size

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("ferro_alloc")
_P = ParamSpec("_P")
_T = TypeVar("_T")

LONGEST = 80
"""Maximum number of characters of a name."""


class _OfThread(threading.local):
    name = ""


_of_thread = _OfThread()
_waits_for_cuda = False


def tag(name: str) -> _GeneratorContextManager[None]:
    """Names the CUDA memory that this thread requests inside it, until that memory is freed.

        with ferro_alloc.tag("kv cache"):
            cache = torch.empty(shape, device="cuda")

        @ferro_alloc.tag("encoder")
        def encode(batch): ...

    The innermost tag counts. A tag applies to the thread that enters it; threads that the program
    starts have no tag unless they enter one, or run a function of `carry_tag()`. Under ferro_alloc
    it also applies to a backward pass: memory that the pass requests has the tag in which
    `backward()` is called, or without one that of the forward code.

    Under ferro_alloc bytes by tag are in `tags()`, `status()`, out-of-memory errors and `top`.
    Under any allocator a history records tags, as PyTorch's user metadata, which they replace.

    Raises `FerroError` unless `name` is one line of 1 to `LONGEST` characters.
    """
    return _tagged(_checked(name, "tag"))


def carry_tag(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Returns `function`, to be called in any thread with the tag that this thread has now.

        pool.submit(ferro_alloc.carry_tag(load), shard)

    Returns it unchanged in a thread without a tag.
    """
    name = _of_thread.name
    if not name:
        return function

    @functools.wraps(function)
    def tagged(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _tagged(name):
            return function(*args, **kwargs)

    return tagged


def tag_pool(pool: Any, name: str | None) -> None:
    """Names the memory that a pool serves from now on, for requests that have no other tag.

        pool = torch.cuda.MemPool()
        ferro_alloc.tag_pool(pool, "kv cache")

    `pool` is a MemPool, a handle of a graph pool, a `CapturePool`, a graph, or an `ExclusiveGroup`:
    then the tag is that of all its pools, including those that join later, unless a pool has its
    own. It lasts as long as the pool, or as long as the pool is a member; `None` removes it. It has
    an effect under ferro_alloc. Raises `FerroError` for an object that is no pool, and for a name
    that `tag()` refuses.
    """
    named = "" if name is None else _checked(name, "tag_pool")
    import_module("ferro_alloc.graphs._exclusive").tag_pool(pool, named)


def set_tag_limit(
    name: str,
    *,
    soft: int | str | None = None,
    hard: int | str | None = None,
    on_soft: Callable[[str, int, int], object] | None = None,
) -> None:
    """Limits the live bytes of a tag on each device, in bytes or as in `"2GiB"`.

        ferro_alloc.set_tag_limit("kv cache", soft="30GiB", hard="40GiB", on_soft=evict)

    A request that would take the tag above `hard` raises `torch.OutOfMemoryError`, which names the
    tag; nothing else changes. A request that takes it above `soft` is served. Then its thread calls
    `on_soft(name, live_bytes, soft)`, once each time the bytes rise above the limit. The function
    may allocate and free; what it requests itself causes no further call. An exception of it goes
    to the logger `ferro_alloc`, and one that is no `Exception`, as of Ctrl-C, to
    `sys.unraisablehook`: the request was served already.

    The call replaces the tag's limits; without limits it removes them. Limits have an effect under
    ferro_alloc. From the first one on, all requests of the process take a slower path. Raises
    `FerroError` for invalid arguments.
    """
    _checked(name, "set_tag_limit")
    soft_bytes, hard_bytes = (None if size is None else _bytes_of(size) for size in (soft, hard))
    if (soft is None) != (on_soft is None) or not (on_soft is None or callable(on_soft)):
        raise FerroError(
            f"set_tag_limit(soft={soft!r}, on_soft={on_soft!r}): expected both, a size and a "
            "function, or neither"
        )
    if soft_bytes is not None and hard_bytes is not None and soft_bytes > hard_bytes:
        raise FerroError(
            f"set_tag_limit(soft={soft!r}, hard={hard!r}): expected a soft limit below the hard one"
        )

    call = None
    if on_soft is not None and soft_bytes is not None:
        call = functools.partial(_call, on_soft, name, soft_bytes)
    if not _load.load().set_tag_limit(name, soft_bytes, hard_bytes, call):
        raise FerroError(
            f"set_tag_limit({name!r}): the process has used so many tags that this one shares its "
            "number with others: limit it before they are used"
        )


def _call(
    on_soft: Callable[[str, int, int], object], name: str, soft: int, live_bytes: int
) -> None:
    try:
        on_soft(name, live_bytes, soft)
    except Exception:
        _log.exception("the function for the soft limit of the tag %r failed", name)


def _bytes_of(size: int | str) -> int:
    if isinstance(size, str):
        from ferro_alloc.sim.cards import parse_size

        return parse_size(size)
    return checked_size(size)


@dataclass(frozen=True)
class TagMemory:
    """The memory of one tag on one device, in bytes."""

    live_bytes: int
    """Sizes of the blocks in use."""
    blocks: int
    """The number of blocks in use."""
    peak_bytes: int
    """The maximum of `live_bytes` since the first tag of the process, or since the last
    `torch.cuda.reset_peak_memory_stats()`. It is exact."""
    reserved_bytes: int
    """Bytes of the handles on which the tag has live bytes: the memory that it keeps from going
    back to the driver. A handle with blocks of several tags counts for each of them, so the sum may
    exceed the reserved memory. A handle is one page, or several of a large request."""


def tags(device: int | str | torch.device | None = None) -> dict[str, TagMemory]:
    """Returns the memory of each tag on a device, by name, the most live bytes first.

    It has the tags with live blocks, and those that had some since the last reset of peaks. Empty
    while ferro_alloc does not serve the device. Visits all blocks of the device. `device` is as in
    `ferro_alloc.device()`; raises `FerroError` for an unknown one.
    """
    index = device_index(device)
    return {name: TagMemory(*numbers) for name, *numbers in _load.load().tag_memory(index)}


def _checked(name: str, function: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable():
        raise FerroError(
            f"{function}({name!r}): expected a name of one line and 1 to {LONGEST} characters, as "
            f"in {function}('kv cache')"
        )
    return name


@contextmanager
def _tagged(name: str) -> Iterator[None]:
    import torch

    before = _of_thread.name
    if not before and torch.cuda.is_initialized():
        before = torch._C._cuda_getMemoryMetadata()
    _put(torch, name)
    try:
        yield
    finally:
        _put(torch, before)


def _put(torch: Any, name: str) -> None:
    global _waits_for_cuda
    _of_thread.name = name
    if torch.cuda.is_initialized():
        torch._C._cuda_setMemoryMetadata(name)
    elif not _waits_for_cuda:
        # PyTorch's allocator has no device before CUDA is initialised.
        _waits_for_cuda = True
        torch.cuda._lazy_call(tell_again)


def tell_again() -> None:
    """Passes the thread's tag to the current allocator, which may have changed."""
    if _of_thread.name:
        torch: Any = sys.modules["torch"]
        torch._C._cuda_setMemoryMetadata(_of_thread.name)
