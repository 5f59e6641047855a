"""ferro_alloc as a sleep-mode backend of vLLM (`sleep_mode_backend="ferro_alloc"`).

vLLM calls `register()` in each of its processes (entry point `vllm.general_plugins`). It only adds
the name to vLLM's list; an engine that asks for another backend is as without this module.

With the backend, weights, KV cache, state of the runtime and workspaces lie in regions of
ferro_alloc instead of the pools of vLLM's `CuMemAllocator`. What `CuMemAllocator` holds all the
same falls asleep and wakes with them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ferro_alloc import _import_hook, _load, _regions, _sleep, allocator
from ferro_alloc._errors import FerroError

if TYPE_CHECKING:

    class SleepModeBackend:
        _state: str

else:
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackend
    except ImportError:
        # `register()` then registers nothing.
        SleepModeBackend = object

__all__ = ["NAME", "FerroBackend", "register"]

NAME = "ferro_alloc"
"""The name of the backend."""
_WORKER = "vllm.v1.worker.gpu_worker"
# As in vLLM: level 2 drops the weights, every level what is in neither set.
_KEPT = ("runtime", "cudagraph")
_WEIGHTS = "weights"
# Every wake-up restores all tags but these, which it can defer.
_DEFERRABLE = (_WEIGHTS, "kv_cache")

_log = logging.getLogger("ferro_alloc")
_regions_of_vllm = _regions.Regions()
_tags: set[str] = set()


def register() -> None:
    """Adds the backend to those that vLLM knows. May be called several times.

    Does nothing with a vLLM that has no list of sleep-mode backends (before 0.33).
    """
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:
        return
    if NAME in SleepModeBackendFactory._registry:
        return
    SleepModeBackendFactory.register_backend(NAME, __name__, FerroBackend.__name__)
    _import_hook.AfterImport(_WORKER, _place_memory_of_workers).arm()


class FerroBackend(SleepModeBackend):
    """vLLM's `SleepModeBackend` by `ferro_alloc.sleep()` and `wake()`.

    Level 1 keeps the contents of weights, level 2 drops them; both keep state of the runtime and
    drop the KV cache and workspaces.
    """

    @classmethod
    def is_supported(cls) -> bool:
        """Whether ferro_alloc is installed in this process; logs what to do if it is not."""
        if not allocator.is_installed():
            _log.error("%s", _NOT_INSTALLED)
        return allocator.is_installed()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """True: memory of communicators stays."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """True: kernels and graphs stay, and memory returns to the same addresses."""
        return True

    def suspend(self, level: int = 1) -> None:
        """Puts all tags to sleep. Raises `RuntimeError` if the host lacks memory for contents."""
        self._state = "SUSPENDED"
        kept = {*_KEPT, _WEIGHTS} if level == 1 else set(_KEPT)
        _fall_asleep("suspend()", kept=_tags & kept, dropped=_tags - kept)
        if other := _other_allocator():
            other.sleep(offload_tags=tuple(sorted(kept)))
        _empty_cache()

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes `tags`, and what is neither weights nor KV cache; None is everything.

        Raises `torch.OutOfMemoryError` if the device lacks memory.
        """
        self._state = "RESUMING"
        wanted = {tag for tag in _tags if tags is None or tag in tags or tag not in _DEFERRABLE}
        _empty_cache()
        if wanted:
            _sleep.wake([_name_of(tag) for tag in sorted(wanted)])
        if other := _other_allocator():
            other.wake_up(tags)
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """Puts `tags` to sleep and drops their contents."""
        _fall_asleep("discard()", kept=(), dropped=_tags.intersection(tags))
        if other := _other_allocator():
            other.discard(tags)
        self._state = "SUSPENDED"


_NOT_INSTALLED = (
    f"the sleep-mode backend {NAME!r} of vLLM needs ferro_alloc in each of its processes: set "
    "FERRO_ALLOC=1, or leave sleep_mode_backend out"
)


def _name_of(tag: str) -> str:
    return f"vllm {tag}"


@contextmanager
def _region(tag: str) -> Iterator[None]:
    """What is freed in it returns to the driver at its end, before vLLM measures free memory."""
    _tags.add(tag)
    name = _name_of(tag)
    try:
        with _regions_of_vllm.enter(name, f"the sleep-mode backend {NAME!r} of vLLM"):
            yield
    finally:
        _regions_of_vllm.give_up_pools([name])


def _fall_asleep(call: str, kept: Iterable[str], dropped: Iterable[str]) -> None:
    names = [[_name_of(tag) for tag in sorted(part)] for part in (kept, dropped)]
    _regions_of_vllm.give_up_pools([*names[0], *names[1]])
    _regions.sleep(f"vLLM's {call}", *names)


def _is_in_use(tag: str) -> bool:
    import torch

    extension = _load.load()
    return any(
        extension.device_report(index)["tags"].get(_name_of(tag))
        for index in range(torch.cuda.device_count())
    )


def _empty_cache() -> None:
    """As the default backend does, so that other processes get what vLLM has freed."""
    import torch

    torch.cuda.empty_cache()


def _other_allocator() -> Any:
    """vLLM's own allocator if it has memory; it serves what was not requested by a worker."""
    module = sys.modules.get("vllm.device_allocator.cumem")
    instance = None if module is None else module.CuMemAllocator.instance
    return instance if instance is not None and instance.get_current_usage() else None


def _place_memory_of_workers(worker_module: ModuleType) -> None:
    """Lets workers whose engine has this backend request memory in regions."""
    worker_class = worker_module.Worker
    original = getattr(worker_class, "_maybe_get_memory_pool_context", None)
    if original is None:
        _log.info(
            "the sleep-mode backend %r of vLLM does not know this version's workers: their memory "
            "stays in vLLM's own pools, and sleeps there",
            NAME,
        )
        return

    def context(worker: Any, tag: str) -> AbstractContextManager[None]:
        settings = worker.vllm_config.model_config
        if not settings.enable_sleep_mode or settings.sleep_mode_backend != NAME:
            found: AbstractContextManager[None] = original(worker, tag)
            return found
        if not allocator.is_installed():
            raise FerroError(_NOT_INSTALLED)
        if tag == _WEIGHTS and _is_in_use(tag):
            raise FerroError(
                f"the sleep-mode backend {NAME!r} of vLLM serves one engine of a process, and "
                "another one has its weights here: start each engine in a process of its own"
            )
        return _region(tag)

    worker_class._maybe_get_memory_pool_context = context
