"""Makes what Triton's kernels write unknown.

The simulated GPU launches these kernels, and they do nothing. Without this hook the earlier bytes
of a tensor would count as what a kernel wrote to it. The driver handles what this hook does not
see: launches that bypass Triton's and Inductor's Python code, and writes through addresses that a
kernel loads from memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ferro_alloc._import_hook import AfterImport

# Whether an argument of this name is written.
Writes = Callable[[str], bool]


def install(torch: Any, note_own_launches: Callable[[int], None]) -> None:
    launches = _Launches(torch, note_own_launches)
    AfterImport("triton.runtime.jit", launches.adjust_triton).arm()
    AfterImport("torch._inductor.runtime.triton_heuristics", launches.adjust_inductor).arm()


def _everything(_: str) -> bool:
    return True


class _Launches:
    def __init__(self, torch: Any, note_own_launches: Callable[[int], None]) -> None:
        self._torch = torch
        self._note_own_launches = note_own_launches
        self._launch = torch.ops.ferro_sim.launch.default
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def adjust_triton(self, jit: ModuleType) -> None:
        """Kernels that a program launches itself."""
        function: Any = jit.__dict__["JITFunction"]
        run = function.run

        def run_and_note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> object:
            with self._own_launches():
                compiled = run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup and compiled is not None:
                named = self._arguments(kernel, args, kwargs)
                self._note(kernel, named, self._writes(compiled, kernel, named))
            return compiled

        function.run = run_and_note

    def adjust_inductor(self, heuristics: ModuleType) -> None:
        """Kernels of compiled programs, which may also be the program's own."""
        tuner: Any = heuristics.__dict__["CachingAutotuner"]
        run = tuner.run

        def run_and_note(kernel: Any, *args: Any, **kwargs: Any) -> object:
            with self._own_launches():
                result = run(kernel, *args, **kwargs)
            if len(kernel.launchers) != 1:
                return result  # Triton's interpreter ran it
            launcher = kernel.launchers[0]
            code = launcher.__code__
            names = code.co_varnames[: code.co_argcount]
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            if _is_inductors(named):
                writes = _writes_of_inductor(kernel.mutated_arg_names)
            else:
                constants = {**kernel.triton_meta.get("constants", {}), **launcher.config.kwargs}
                given = self._arguments(kernel.fn, (), {**constants, **named})
                writes = self._writes(launcher, kernel.fn, given)
            self._note(kernel.fn, named, writes)
            return result

        tuner.run = run_and_note

    @contextmanager
    def _own_launches(self) -> Iterator[None]:
        """The driver leaves it to this hook what the kernels write through their arguments."""
        self._note_own_launches(1)
        try:
            yield
        finally:
            self._note_own_launches(-1)

    def _arguments(
        self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        names = kernel.arg_names
        defaults = {
            parameter.name: parameter.default
            for parameter in kernel.params
            if parameter.has_default
        }
        given = {name: kwargs[name] for name in names if name in kwargs}
        return {**defaults, **dict(zip(names, args, strict=False)), **given}

    def _note(self, kernel: Any, named: Mapping[str, Any], writes: Writes) -> None:
        read: list[Any] = []
        written: list[Any] = []
        for name, argument in named.items():
            for tensor in self._tensors(argument):
                (written if writes(name) else read).append(tensor)
        if written:
            # Calls the operator below autograd and the program's modes.
            self._launch.redispatch(self._keys, kernel.__name__, read, written)

    def _tensors(self, argument: Any) -> Iterator[Any]:
        if isinstance(argument, self._torch.Tensor):
            if argument.is_cuda:
                yield argument
        elif isinstance(argument, tuple | list):
            for element in argument:
                yield from self._tensors(element)
        elif hasattr(argument, "base"):  # a descriptor, or a tensor that is read as another type
            yield from self._tensors(argument.base)

    def _writes(self, holder: Any, kernel: Any, named: Mapping[str, Any]) -> Writes:
        """What the code writes, as PyTorch finds it for kernels in compiled programs. `holder` is
        an object of this version of the kernel, which keeps the result."""
        known: Writes | None = getattr(holder, "_ferro_writes", None)
        if known is None:
            known = self._found(kernel, named)
            holder._ferro_writes = known
        return known

    def _found(self, kernel: Any, named: Mapping[str, Any]) -> Writes:
        simple = (self._torch.Tensor, int, float, bool, str, type(None))
        if any(not isinstance(argument, simple) for argument in named.values()):
            return _everything
        from torch._higher_order_ops import triton_kernel_wrap

        # It warns of what it can't analyse, and then names all tensors.
        log = triton_kernel_wrap.log
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            found = triton_kernel_wrap.identify_mutated_tensors(kernel, dict(named), {})
        except Exception:
            return _everything
        finally:
            log.setLevel(level)
        return frozenset(found).__contains__


# What Inductor calls the pointers of its own kernels, except for those of templates.
_READ, _WRITTEN = ("in_ptr",), ("out_ptr", "in_out_ptr", "ws_ptr")


def _is_inductors(named: Mapping[str, Any]) -> bool:
    tensors = (name for name, argument in named.items() if hasattr(argument, "data_ptr"))
    return all(name.startswith(_READ + _WRITTEN) for name in tensors)


def _writes_of_inductor(mutated: Collection[str]) -> Writes:
    return lambda name: name in mutated or not name.startswith(_READ)
