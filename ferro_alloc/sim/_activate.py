"""Replaces the driver and the CUDA libraries by the simulated GPU."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc._import_hook import AfterImport
from ferro_alloc._status import size_text
from ferro_alloc.sim import _library
from ferro_alloc.sim._torch_hook import adjust_torch
from ferro_alloc.sim.cards import Card, find_card, parse_memory

MODES = ("eager", "adversarial", "clock")
PAGE = 2 << 20
MOST_DEVICES = 16
"""As in csrc/sim/settings."""
# Passes the settings of the machine to the Python processes that a program starts.
VARIABLE = "FERRO_ALLOC_SIM"


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
        """Settings for the driver; `told` returns those for another process."""
        return f"card={self.card.figures()},devices={self.count},{self._rest()}"

    def told(self) -> str:
        return f"gpu={self.card.key},count={self.count},{self._rest()},values={int(self.values)}"

    def _rest(self) -> str:
        memory = "" if self.memory is None else f"memory={self.memory},"
        context = "" if self.context is None else f"context={self.context},"
        return f"{memory}{context}mode={self.mode},seed={self.seed},backing={int(self.backing)}"

    def __str__(self) -> str:
        memory = "" if self.memory is None else f" with {size_text(self.memory)} of memory"
        order = f"{self.mode}, seed {self.seed}" if self.mode == "adversarial" else self.mode
        return f"{self.count} x {self.card.key}{memory}, {order}"


def machine(
    gpu: str = "h100",
    count: int = 1,
    memory: int | str | None = None,
    mode: str = "eager",
    seed: int = 0,
    backing: bool = True,
    context: int | None = None,
    values: bool | None = None,
) -> Machine:
    """Creates a machine, with the arguments and the errors of `activate()`."""
    if not 1 <= count <= MOST_DEVICES:
        raise FerroError(f"the number of cards is {count}: expected 1 to {MOST_DEVICES}")
    size = parse_memory(memory) if isinstance(memory, str) else memory
    if size is not None and size < PAGE:
        raise FerroError(f"the memory is {size} bytes: expected at least a page of 2 MiB")
    if values is None:
        values = mode == "eager" and backing
    if values and not backing:
        raise FerroError("values need memory that keeps them: leave `backing` on, or `values` off")
    return Machine(find_card(gpu), count, size, context, mode, seed, backing, values)


_active: Machine | None = None
_inherited = False
_preloaded = False


def is_active() -> bool:
    return _active is not None


def has_clock() -> bool:
    return _active is not None and _active.mode == "clock"


def has_values() -> bool:
    """Whether operators on known data have real results."""
    return _active is not None and _active.values


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

    `gpu` names a card of `cards.CARDS`. `memory` is the memory of each device, in bytes or as in
    "24GiB"; None means the card's. `context` is the number of bytes that a context takes of it;
    None means the card's, or 0 with `memory`. `mode` is one of `MODES`, `seed` the seed of the
    adversarial order. Without `backing` device memory keeps no contents: copies check their
    addresses, and reads return zeros.

    With `values` PyTorch's operators on known data have real results, computed on the host, and
    the program gets a warning when it reads other values; None means: in mode "eager" with
    `backing`.

    Python processes that this one starts have the same GPUs and share their memory, if ferro_alloc
    is installed for them.

    A second call with the same arguments does nothing. Raises `FerroError`, with nothing changed,
    if another machine is active, torch or CUDA is already loaded, the libraries are not built, or
    an argument is wrong. Other arguments replace a machine that the process inherited.
    """
    wanted = machine(gpu, count, memory, mode, seed, backing, context, values)
    if _active == wanted:
        return
    if _active is not None and not _inherited:
        raise FerroError(
            f"a simulated GPU is already active with other arguments ({_active}): a process "
            f"has one for its whole life, so start another process for {wanted}"
        )
    if "torch" in sys.modules and not _preloaded:
        raise FerroError(
            "the simulated GPU must be activated before torch is imported: torch's CUDA libraries "
            "are already bound to the real ones"
        )
    _start(wanted, _told_sharing(wanted))


def preload() -> None:
    """Loads only the libraries, for a process that imports torch, uses no CUDA, and forks. Each
    child may then call `activate()` with its own arguments."""
    global _preloaded
    _library.load()
    _preloaded = True


def inherit() -> None:
    """Repeats the `activate()` of the parent process. Does nothing without one."""
    global _inherited
    text = os.environ.get(VARIABLE, "")
    if text not in ("", "0") and _active is None:
        told, sharing = _parse(text)
        _start(told, sharing)
        _inherited = True


def _start(chosen: Machine, sharing: str) -> None:
    global _active, _inherited
    driver = _library.load()
    if driver.ferro_sim_start(f"{chosen.settings()},sharing={sharing}".encode()) != 0:
        raise FerroError(driver.ferro_sim_last_error().decode())
    is_first = _active is None
    _active, _inherited = chosen, False
    # Each process names its own file, so that its children do not need its parent.
    shared = _library.text_of(driver.ferro_sim_sharing)
    os.environ[VARIABLE] = f"{chosen.told()},sharing={shared}"
    os.environ["TRITON_LIBCUDA_PATH"] = str(_library.folder())
    if is_first:
        AfterImport("torch", _adjust).arm()


def _adjust(torch: ModuleType) -> None:
    assert _active is not None
    adjust_torch(torch, values=_active.values)


def _told_sharing(wanted: Machine) -> str:
    """Returns the parent's shared memory if the parent has the same machine, or else "new"."""
    try:
        told, sharing = _parse(os.environ.get(VARIABLE, ""))
    except FerroError:
        return "new"
    return sharing if told == wanted else "new"


def _parse(text: str) -> tuple[Machine, str]:
    """Parses `gpu=h100,count=2,memory=24GiB`, with the arguments of `activate()`, and the shared
    memory; `1` means the defaults."""
    pairs = [] if text == "1" else text.split(",")
    values = dict(pair.partition("=")[::2] for pair in pairs if pair)
    sharing = values.pop("sharing", "new")
    known = inspect.signature(machine).parameters
    if unknown := [key for key in values if key not in known]:
        raise FerroError(
            f"{VARIABLE} names {', '.join(unknown)}: expected {', '.join(known)}, as in gpu=h100"
        )
    arguments: dict[str, Any] = dict(values)
    try:
        for key in {"count", "seed", "context"} & arguments.keys():
            arguments[key] = int(arguments[key])
        for key in {"backing", "values"} & arguments.keys():
            arguments[key] = bool(int(arguments[key]))
        if arguments.get("memory", "").isdecimal():
            arguments["memory"] = int(arguments["memory"])
    except ValueError as error:
        raise FerroError(f"{VARIABLE} is {text!r}: {error}") from None
    return machine(**arguments), sharing
