"""A replacement for PyTorch's CUDA caching allocator.

    import ferro_alloc
    ferro_alloc.install()

Importing the package initialises nothing and imports no torch.
"""

from ferro_alloc import sizes
from ferro_alloc._device import DeviceMemoryView, DeviceNumbers, device
from ferro_alloc._errors import FerroError
from ferro_alloc._failures import OutOfMemory, PoolShare, StreamShare, explain
from ferro_alloc._pins import Pin, pin
from ferro_alloc._status import DeviceStatus, Status
from ferro_alloc._version import __version__
from ferro_alloc.allocator import install, is_installed, status, uninstall
from ferro_alloc.config import Config

__all__ = [
    "Config",
    "DeviceMemoryView",
    "DeviceNumbers",
    "DeviceStatus",
    "FerroError",
    "OutOfMemory",
    "Pin",
    "PoolShare",
    "Status",
    "StreamShare",
    "__version__",
    "device",
    "explain",
    "install",
    "is_installed",
    "pin",
    "sizes",
    "status",
    "uninstall",
]
