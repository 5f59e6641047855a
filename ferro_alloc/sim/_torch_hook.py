"""Adjusts torch to the simulated GPU as soon as it is imported.

PyTorch's CPU operators compute small results instead of kernels.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ferro_alloc.sim import _library

OWN_FOLDER = Path(__file__).parents[1]


def adjust_torch(torch: ModuleType, values: bool) -> None:
    # If a program loaded NVML first, that is the real library, which knows the real devices. The
    # runtime then counts them, which fixes CUDA_VISIBLE_DEVICES earlier than NVML does.
    nvml = "libnvidia-ml.so.1"
    if ctypes.CDLL(nvml)._handle != ctypes.CDLL(str(_library.folder() / nvml))._handle:
        torch.cuda._device_count_nvml = lambda: -1
    # Inductor's compile processes would look for a GPU and find none.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # This extension needs torch to be loaded first.
    computed = import_module("ferro_alloc.sim._values")
    computed.install(compute=values)
    computed.set_library_folders(
        [str(OWN_FOLDER), *torch.__path__], standard=sysconfig.get_path("stdlib")
    )
    if values:
        _allocate_by_operator(torch)
        _observe_storages(torch, computed)
        _observe_uses(torch, computed)
        # Imported here and below, because most of the start would be their import.
        from ferro_alloc.sim import _triton_hook

        _triton_hook.install(torch, computed.note_own_launches)


def _allocate_by_operator(torch: Any) -> None:
    """Inductor's code allocates without an operator, and its kernels note nothing. So its results
    would count as what the last tensor in their memory was."""

    def empty_strided_cuda(size: object, stride: object, dtype: object) -> object:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda


def _observe_storages(torch: Any, computed: Any) -> None:
    """Storages get memory without an operator. It would count as what the last tensor there was."""
    storages = torch.UntypedStorage
    make, resize = storages.__new__, storages.resize_

    def forget_from(storage: Any, begin: int) -> None:
        more = storage.nbytes() - begin
        if storage.device.type == "cuda" and more > 0:
            computed.forget_unset(storage.device.index, storage.data_ptr() + begin, more)

    def make_unset(cls: type, *args: Any, **kwargs: Any) -> object:
        storage = make(cls, *args, **kwargs)
        # Made of a sequence, it has its elements.
        if all(isinstance(size, int) for size in (*args, kwargs.get("size", 0))):
            forget_from(storage, 0)
        return storage

    @functools.wraps(resize)
    def resize_(storage: Any, size: int) -> object:
        before = storage.nbytes()
        result = resize(storage, size)
        forget_from(storage, before)
        return result

    storages.__new__ = make_unset
    storages.resize_ = resize_


def _observe_uses(torch: Any, computed: Any) -> None:
    """Of a number that is read, the program's source tells whether it is only shown. That is not
    so of floating-point numbers that `int(tensor)` or `if tensor` reads. To print a tensor, PyTorch
    itself reads sizes and branches."""
    from ferro_alloc.sim import _float_uses, _harmless

    computed.set_uses(_float_uses.reached, _harmless.is_harmless)
    for name in ("__int__", "__bool__"):
        read = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, _within(computed.use_as_integers, read))
    torch._tensor_str._str = _within(computed.use_as_text, torch._tensor_str._str)
    torch.Tensor.__format__ = _within(computed.use_as_text, torch.Tensor.__format__)
    # It is read to be saved.
    scaler = torch.amp.grad_scaler.GradScaler
    scaler.state_dict = _within(computed.use_as_text, scaler.state_dict)
    # Storages are saved as bytes, of whatever type their elements are.
    torch.save = torch.serialization.save = _within(computed.use_as_text, torch.save)


def _within(change: Callable[[int], None], function: Callable[..., object]) -> object:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        change(1)
        try:
            return function(*args, **kwargs)
        finally:
            change(-1)

    return call
