"""Tags: names that the program gives to the memory that it requests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import _GeneratorContextManager, contextmanager
from typing import Any

from ferro_alloc._errors import FerroError

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

    The innermost tag counts. A tag applies to one thread: other threads, including those of
    autograd, have no tag unless they enter one, so memory that a backward pass requests has no tag.
    Under ferro_alloc live bytes by tag are in `status()`, in out-of-memory errors and in `top`.
    Under any allocator a history records tags, as PyTorch's user metadata, which they replace.

    Raises `FerroError` unless `name` is one line of 1 to `LONGEST` characters.
    """
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable():
        raise FerroError(
            f"tag({name!r}): expected a name of one line and 1 to {LONGEST} characters, as in "
            "tag('kv cache')"
        )
    return _tagged(name)


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
