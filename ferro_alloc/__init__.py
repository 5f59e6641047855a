"""A replacement for PyTorch's CUDA caching allocator.

    import ferro_alloc
    ferro_alloc.install()

Importing the package initialises nothing and imports no torch.
"""

from ferro_alloc._errors import FerroError
from ferro_alloc._version import __version__
from ferro_alloc.allocator import DeviceStatus, Status, install, is_installed, status
from ferro_alloc.config import Config

__all__ = [
    "Config",
    "DeviceStatus",
    "FerroError",
    "Status",
    "__version__",
    "install",
    "is_installed",
    "status",
]
