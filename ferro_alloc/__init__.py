"""A replacement for PyTorch's CUDA caching allocator.

    import ferro_alloc
    ferro_alloc.install()

Importing the package initialises nothing and imports no torch. Each module is loaded on first use,
because with FERRO_ALLOC=1 every start of Python imports the package.
"""

from importlib import import_module

# The same as typing's, whose import takes longer than everything else that a start needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ferro_alloc import sizes
    from ferro_alloc._device import CacheStats, DeviceMemoryView, DeviceNumbers, device
    from ferro_alloc._errors import FerroError
    from ferro_alloc._failures import (
        CallSite,
        OutOfMemory,
        PoolShare,
        StreamShare,
        TagShare,
        explain,
    )
    from ferro_alloc._pins import Pin, pin
    from ferro_alloc._sleep import (
        AsleepMemory,
        SleepReport,
        asleep,
        release_host_memory,
        sleep,
        wake,
    )
    from ferro_alloc._status import DeviceStatus, Status
    from ferro_alloc._tags import TagMemory, carry_tag, set_tag_limit, tag, tag_pool, tags
    from ferro_alloc._version import __version__
    from ferro_alloc.allocator import install, is_installed, status, uninstall
    from ferro_alloc.config import Config
    from ferro_alloc.snapshots import (
        Leak,
        LeakWatch,
        leaks,
        record_history,
        report,
        report_on_oom,
    )

_MODULES = ("allocator", "config", "graphs", "memory_saver", "sizes")
_NAMES = {
    "_device": (
        "CacheStats",
        "DeviceMemoryView",
        "DeviceNumbers",
        "device",
    ),
    "_errors": ("FerroError",),
    "_failures": (
        "CallSite",
        "OutOfMemory",
        "PoolShare",
        "StreamShare",
        "TagShare",
        "explain",
    ),
    "_pins": (
        "Pin",
        "pin",
    ),
    "_sleep": (
        "AsleepMemory",
        "SleepReport",
        "asleep",
        "release_host_memory",
        "sleep",
        "wake",
    ),
    "_status": (
        "DeviceStatus",
        "Status",
    ),
    "_tags": (
        "TagMemory",
        "carry_tag",
        "set_tag_limit",
        "tag",
        "tag_pool",
        "tags",
    ),
    "_version": ("__version__",),
    "allocator": (
        "install",
        "is_installed",
        "status",
        "uninstall",
    ),
    "config": ("Config",),
    "snapshots": (
        "Leak",
        "LeakWatch",
        "leaks",
        "record_history",
        "report",
        "report_on_oom",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Loads a module of the package, or a name from one, on first use."""
    if name in _MODULES:
        return import_module(f"ferro_alloc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'ferro_alloc' has no attribute {name!r}")
    value = getattr(import_module(f"ferro_alloc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


__all__ = [
    "AsleepMemory",
    "CacheStats",
    "CallSite",
    "Config",
    "DeviceMemoryView",
    "DeviceNumbers",
    "DeviceStatus",
    "FerroError",
    "Leak",
    "LeakWatch",
    "OutOfMemory",
    "Pin",
    "PoolShare",
    "SleepReport",
    "Status",
    "StreamShare",
    "TagMemory",
    "TagShare",
    "__version__",
    "asleep",
    "carry_tag",
    "device",
    "explain",
    "install",
    "is_installed",
    "leaks",
    "pin",
    "record_history",
    "release_host_memory",
    "report",
    "report_on_oom",
    "set_tag_limit",
    "sizes",
    "sleep",
    "status",
    "tag",
    "tag_pool",
    "tags",
    "uninstall",
    "wake",
]
