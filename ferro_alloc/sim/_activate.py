"""Puts the simulated GPU in the place of the driver and the CUDA libraries."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import ModuleType

from ferro_alloc._errors import FerroError
from ferro_alloc._import_hook import AfterImport
from ferro_alloc._status import gib
from ferro_alloc.sim import _library
from ferro_alloc.sim._torch_hook import adjust_torch
from ferro_alloc.sim.cards import Card, find_card, parse_memory

MODES = ("eager", "adversarial", "clock")
PAGE = 2 << 20


@dataclass(frozen=True)
class Machine:
    """The arguments of `activate()`."""

    card: Card
    count: int
    memory: int | None
    context: int | None
    mode: str
    seed: int
    backing: bool
    values: bool

    def settings(self) -> str:
        memory = "" if self.memory is None else f",memory={self.memory}"
        context = "" if self.context is None else f",context={self.context}"
        return (
            f"card={self.card.figures()},devices={self.count}{memory}{context},mode={self.mode},"
            f"seed={self.seed},backing={int(self.backing)}"
        )

    def __str__(self) -> str:
        memory = "" if self.memory is None else f" with {gib(self.memory)} of memory"
        order = f"{self.mode}, seed {self.seed}" if self.mode == "adversarial" else self.mode
        return f"{self.count} x {self.card.key}{memory}, {order}"


_active: Machine | None = None


def is_active() -> bool:
    return _active is not None


def has_clock() -> bool:
    return _active is not None and _active.mode == "clock"


def description() -> str:
    """The active machine, as in "1 x h100, eager"; empty without one."""
    return "" if _active is None else str(_active)


def activate(
    gpu: str = "h100",
    count: int = 1,
    memory: int | str | None = None,
    mode: str = "eager",
    seed: int = 0,
    backing: bool = True,
    context: int | None = None,
    values: bool | None = None,
) -> None:
    """Gives this process simulated GPUs, for its whole life. Call it before importing torch.

    `gpu` names a card of `cards.CARDS`. `memory` is that of each device, in bytes or as in "24GiB";
    None stands for the card's. `context` are the bytes that a context takes of it: None stands for
    the card's, or for none where `memory` was given. `mode` is one of `MODES`, `seed` that of the
    adversarial order. Without `backing` device memory keeps no contents: copies check their
    addresses, and reads give zeros.

    With `values` PyTorch's operators on small tensors have real results, computed on the host, and
    the program is warned where it takes others; None stands for: in mode "eager" with `backing`.

    A second call with the same arguments does nothing. Raises `FerroError`, with nothing changed,
    when another machine is active, torch or CUDA is already loaded, the libraries are not built, or
    an argument is wrong.
    """
    global _active
    size = parse_memory(memory) if isinstance(memory, str) else memory
    if size is not None and size < PAGE:
        raise FerroError(f"the memory is {size} bytes: expected at least a page of 2 MiB")
    if values is None:
        values = mode == "eager" and backing
    if values and not backing:
        raise FerroError("values need memory that keeps them: leave `backing` on, or `values` off")
    wanted = Machine(find_card(gpu), count, size, context, mode, seed, backing, values)
    if _active is not None:
        if _active != wanted:
            raise FerroError(
                f"a simulated GPU is already active with other arguments ({_active}): a process "
                f"has one for its whole life, so start another process for {wanted}"
            )
        return
    if "torch" in sys.modules:
        raise FerroError(
            "the simulated GPU must be activated before torch is imported: torch's CUDA libraries "
            "are already bound to the real ones"
        )
    driver = _library.load()
    if driver.ferro_sim_start(wanted.settings().encode()) != 0:
        raise FerroError(driver.ferro_sim_last_error().decode())
    _active = wanted
    os.environ["TRITON_LIBCUDA_PATH"] = str(_library.folder())

    def adjust(torch: ModuleType) -> None:
        adjust_torch(torch, device_count=count, values=values)

    AfterImport("torch", adjust).arm()
