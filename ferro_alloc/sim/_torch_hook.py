"""Adjusts torch to the simulated GPU as soon as it is imported.

PyTorch's CPU operators compute small results instead of kernels.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ferro_alloc.sim import _library

OWN_FOLDER = Path(__file__).parents[1]
LOADED = "what this line loads"
CLOCK_STEP = 2
"""Seconds. Some file systems round the time of a change down by so much."""


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
    from ferro_alloc.sim import _float_uses, _handlers, _harmless

    computed.set_uses(_float_uses.all_reached, _harmless.is_harmless, _handlers.handler_around)
    for name in ("__int__", "__bool__"):
        read = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, _within(computed.use_as_integers, read))
    torch._tensor_str._str = _as_text(torch, computed, torch._tensor_str._str)
    torch.Tensor.__format__ = _as_text(torch, computed, torch.Tensor.__format__)
    # It is read to be saved.
    scaler = torch.amp.grad_scaler.GradScaler
    scaler.state_dict = _within(computed.use_as_text, scaler.state_dict)
    # Storages are saved as bytes, of whatever type their elements are.
    torch.save = torch.serialization.save = _within(computed.use_as_text, torch.save)
    _observe_files(torch, computed)
    _observe_saved_for_backward(torch, computed)


def _is_of_integers(torch: Any, tensor: Any) -> bool:
    with torch._C.DisableTorchFunction():
        dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex)


def _as_text(torch: Any, computed: Any, function: Callable[..., object]) -> object:
    """Of a function that makes a text of a tensor."""
    of_numbers = _within(computed.use_as_text, function)
    of_integers = _within(computed.use_as_text_of_integers, function)

    @functools.wraps(function)
    def call(tensor: object, *args: object, **kwargs: object) -> object:
        make = of_integers if _is_of_integers(torch, tensor) else of_numbers
        return make(tensor, *args, **kwargs)

    return call


def _observe_files(torch: Any, computed: Any) -> None:
    """Integers of the card that were saved, also by `pickle`, are read where the program loads what
    it has saved since: files keep no marks."""
    reduce, load = torch.Tensor.__reduce_ex__, torch.load
    known = computed.KNOWN
    saved = [known]
    since = [0.0]

    @functools.wraps(reduce)
    def reduce_ex(tensor: Any, protocol: Any) -> object:
        if tensor.is_cuda and _is_of_integers(torch, tensor):
            certainty = _certainty_of(torch, computed, tensor)
            if certainty < known and saved[0] == known:
                since[0] = time.time()
            saved[0] = min(saved[0], certainty)
        return reduce(tensor, protocol)

    @functools.wraps(load)
    def load_saved(f: Any, *args: Any, **kwargs: Any) -> object:
        result = load(f, *args, **kwargs)
        if saved[0] < known and _is_changed_since(since[0], f):
            computed.note_read("torch.load", saved[0], LOADED)
        return result

    torch.Tensor.__reduce_ex__ = reduce_ex
    torch.load = torch.serialization.load = load_saved


def _observe_saved_for_backward(torch: Any, computed: Any) -> None:
    """What `save_on_cpu` keeps on the host returns to the card, and decides nothing before that. It
    has integers too, such as indices of pooling and the seeds of attention. Other hooks, as of a
    class derived from it, may read what they copy."""
    hooks = torch.autograd.graph.save_on_cpu
    make, enter = hooks.__init__, hooks.__enter__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self._made_hooks = (self.pack_hook, self.unpack_hook)

    @functools.wraps(enter)
    def enter_with_mark(self: Any) -> object:
        pack = self.pack_hook
        if (pack, self.unpack_hook) == getattr(self, "_made_hooks", None):
            self.pack_hook = _within(computed.use_as_text, pack)
        try:
            return enter(self)
        finally:
            self.pack_hook = pack

    hooks.__init__ = init
    hooks.__enter__ = enter_with_mark


def _certainty_of(torch: Any, computed: Any, tensor: Any) -> int:
    """That of its least certain element. The read is not recorded."""
    computed.begin_probe()
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            tensor.cpu()
    finally:
        certainty = computed.end_probe()
    return int(certainty)


def _is_changed_since(when: float, file: Any) -> bool:
    """Has a file changed since then? Objects that are no files may have."""
    try:
        found = os.fstat(file.fileno()) if hasattr(file, "fileno") else Path(file).stat()
    except (OSError, TypeError, ValueError):
        return True
    return found.st_mtime >= when - CLOCK_STEP


def _within(
    change: Callable[[int], None], function: Callable[..., object]
) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        change(1)
        try:
            return function(*args, **kwargs)
        finally:
            change(-1)

    return call
