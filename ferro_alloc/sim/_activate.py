"""Puts the simulated GPU in the place of the driver and the CUDA libraries."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import ModuleType

from ferro_alloc._errors import FerroError
from ferro_alloc._import_hook import AfterImport
from ferro_alloc.sim import _library
from ferro_alloc.sim._torch_hook import adjust_torch

MODES = ("eager", "adversarial", "clock")
# What the Python processes that a program starts are told: the settings of its machine.
VARIABLE = "FERRO_ALLOC_SIM"


@dataclass(frozen=True)
class Machine:
    """The arguments of `activate()`."""

    gpu: str = "h100"
    count: int = 1
    memory: int | str | None = None
    mode: str = "eager"
    seed: int = 0
    backing: bool = True

    def settings(self) -> str:
        memory = "" if self.memory is None else f",memory={self.memory}"
        return (
            f"card={self.gpu},devices={self.count}{memory},mode={self.mode},seed={self.seed},"
            f"backing={int(self.backing)}"
        )

    def __str__(self) -> str:
        memory = "" if self.memory is None else f" with {self.memory} of memory"
        order = f"{self.mode}, seed {self.seed}" if self.mode == "adversarial" else self.mode
        return f"{self.count} x {self.gpu}{memory}, {order}"


_active: Machine | None = None
_inherited = False


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
) -> None:
    """Gives this process simulated GPUs, for its whole life. Call it before importing torch.

    `memory` is that of each device, in bytes or as in "24GiB"; None stands for the card's. `mode`
    is one of `MODES`, `seed` that of the adversarial order. Without `backing` device memory keeps
    no contents: copies check their addresses, and reads give zeros. Python processes that this one
    starts have the same GPUs and share their memory, where ferro_alloc is installed.

    A second call with the same arguments does nothing. Raises `FerroError`, with nothing changed,
    when another machine is active, torch or CUDA is already loaded, the libraries are not built, or
    an argument is wrong. A machine that the process inherited gives way to other arguments.
    """
    wanted = Machine(gpu, count, memory, mode, seed, backing)
    if _active is not None and _active.settings() == wanted.settings():
        return
    if _active is not None and not _inherited:
        raise FerroError(
            f"a simulated GPU is already active with other arguments ({_active}): a process "
            f"has one for its whole life, so start another process for {wanted}"
        )
    if "torch" in sys.modules:
        raise FerroError(
            "the simulated GPU must be activated before torch is imported: torch's CUDA libraries "
            "are already bound to the real ones"
        )
    _start(wanted, _told_sharing(wanted))


def inherit() -> None:
    """What `activate()` did in the process that started this one. Does nothing without one."""
    global _inherited
    text = os.environ.get(VARIABLE, "")
    if text not in ("", "0") and _active is None:
        machine, sharing = _parse(text)
        _start(machine, sharing)
        _inherited = True


def _start(machine: Machine, sharing: str) -> None:
    global _active, _inherited
    driver = _library.load()
    if driver.ferro_sim_start(f"{machine.settings()},sharing={sharing}".encode()) != 0:
        raise FerroError(driver.ferro_sim_last_error().decode())
    is_first = _active is None
    _active, _inherited = machine, False
    # Each process names its own file, so that its children do not need its parent.
    os.environ[VARIABLE] = (
        f"{machine.settings()},sharing={_library.text_of(driver.ferro_sim_sharing)}"
    )
    os.environ["TRITON_LIBCUDA_PATH"] = str(_library.folder())
    if is_first:
        AfterImport("torch", _adjust).arm()


def _adjust(torch: ModuleType) -> None:
    assert _active is not None
    adjust_torch(torch, device_count=_active.count)


def _told_sharing(machine: Machine) -> str:
    """Where the process that started this one has the same machine: its memory."""
    try:
        told, sharing = _parse(os.environ.get(VARIABLE, ""))
    except FerroError:
        return "new"
    return sharing if told.settings() == machine.settings() else "new"


def _parse(text: str) -> tuple[Machine, str]:
    """`gpu=h100,count=2,memory=24GiB`, with the arguments of `activate()`, and who shares it; `1`
    stands for the defaults."""
    pairs = [] if text == "1" else text.split(",")
    values = dict(pair.partition("=")[::2] for pair in pairs if pair)
    sharing = values.pop("sharing", "new")
    names = {"card": "gpu", "devices": "count"}
    values = {names.get(key, key): value for key, value in values.items()}
    known = Machine.__dataclass_fields__
    if unknown := [key for key in values if key not in known]:
        raise FerroError(
            f"{VARIABLE} names {', '.join(unknown)}: expected {', '.join(known)}, as in gpu=h100"
        )
    try:
        numbers = {key: int(values.pop(key)) for key in ("count", "seed") if key in values}
        backing = bool(int(values.pop("backing", "1")))
    except ValueError as error:
        raise FerroError(f"{VARIABLE} is {text!r}: {error}") from None
    return Machine(**values, **numbers, backing=backing), sharing  # type: ignore[arg-type]
