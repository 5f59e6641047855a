"""The other process of sharing.py: carries out commands with the tensors that it receives.

The JSON in SHARING_PEER describes it. Started by spawn, it sets up its own simulated GPU and
allocator when this module is imported. With "fork" it has those of the process that starts it,
which has not used CUDA yet, and does not import torch again.
"""

import gc
import itertools
import json
import multiprocessing
import os
import queue
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import refuse_pidfd

_settings = json.loads(os.environ["SHARING_PEER"])
IS_PEER = os.getpid() != _settings["parent"]

if IS_PEER:
    if _settings["simulated"]:
        from ferro_alloc import sim

        sim.activate(**_settings["sim"])
    if _settings["allocator"] in ("ferro", "segments"):
        import ferro_alloc

        layout = "segments" if _settings["allocator"] == "segments" else "pages"
        ferro_alloc.install(ferro_alloc.Config(layout=layout))

import torch
import torch.multiprocessing  # teaches pickle to send CUDA tensors

HELD: dict[str, Any] = {}


def open_descriptors() -> int:
    """The number of descriptors, without those of the simulated driver, which lie beyond a lower
    soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sum(int(entry.name) < soft for entry in Path("/proc/self/fd").iterdir())


def limit_descriptors(spare: int) -> None:
    """Limits this process to `spare` more descriptors."""
    opened = [os.dup(0) for _ in range(spare)]
    for each in opened:
        os.close(each)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1] + 1, hard))


def error_of_opening(shared: Any) -> tuple[str, str]:
    try:
        torch.UntypedStorage._new_shared_cuda(*shared)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def filled(size: int, tag: int, device: str = "cuda") -> torch.Tensor:
    """Words `tag`, `tag + 1`, ... written by a copy, which the simulated GPU carries out."""
    host = torch.arange(tag, tag + size // 4, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True)


def is_filled(tensor: torch.Tensor, tag: int) -> bool:
    words = torch.arange(tag, tag + tensor.numel(), dtype=torch.int32)
    return bool(torch.equal(tensor.cpu(), words))


def refill(tensor: torch.Tensor, tag: int) -> None:
    words = torch.arange(tag, tag + tensor.numel(), dtype=torch.int32)
    tensor.copy_(words.pin_memory(), non_blocking=True)
    torch.cuda.synchronize()


class Commands:
    @staticmethod
    def check(tensor: torch.Tensor, tag: int) -> bool:
        return is_filled(tensor, tag)

    @staticmethod
    def refill(tensor: torch.Tensor, tag: int) -> bool:
        refill(tensor, tag)
        return True

    @staticmethod
    def hold(name: str, value: Any) -> int:
        HELD[name] = value
        return int(value.data_ptr()) if isinstance(value, torch.Tensor) else 0

    @staticmethod
    def check_held(name: str, tag: int) -> bool:
        return is_filled(HELD[name], tag)

    @staticmethod
    def drop(name: str) -> bool:
        del HELD[name]
        gc.collect()
        return True

    @staticmethod
    def make(size: int, tag: int) -> torch.Tensor:
        HELD["made"] = filled(size, tag)
        return HELD["made"]

    @staticmethod
    def share(name: str, size: int, tag: int) -> Any:
        """The arguments with which another process opens a tensor that is held here."""
        HELD[name] = filled(size, tag)
        torch.cuda.synchronize()
        return HELD[name].untyped_storage()._share_cuda_()

    @staticmethod
    def open_while_its_sender_is_stopped(process: int, shared: Any) -> Any:
        """The time of the call, its error, and the longest pause of another thread here."""
        state = Path(f"/proc/{process}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        ticks, over = [time.monotonic()], threading.Event()

        def tick() -> None:
            while not over.wait(0.05):
                ticks.append(time.monotonic())

        ticking = threading.Thread(target=tick)
        ticking.start()
        begin = time.monotonic()
        kind, text = "", ""
        try:
            torch.UntypedStorage._new_shared_cuda(*shared)
        except Exception as error:
            kind, text = type(error).__name__, str(error)
        seconds = time.monotonic() - begin
        over.set()
        ticking.join()
        ticks.append(time.monotonic())
        return seconds, kind, text, max(b - a for a, b in itertools.pairwise(ticks))

    @staticmethod
    def wait_for(event: torch.cuda.Event, tensor: torch.Tensor, tag: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            return is_filled(tensor, tag)

    @staticmethod
    def takes_descriptors_of(process: int) -> bool:
        """Whether the kernel lets this process take a descriptor of another one."""
        return refuse_pidfd.take_descriptor(os.pidfd_open(process), 0)

    @staticmethod
    def descriptors() -> int:
        return open_descriptors()

    @staticmethod
    def limit(spare: int) -> bool:
        limit_descriptors(spare)
        return True

    error_of_opening = staticmethod(error_of_opening)

    @staticmethod
    def error_of_opening_without_room(shared: Any) -> tuple[str, str]:
        """Opens with room for only a connection."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit_descriptors(1)
        try:
            return error_of_opening(shared)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    @staticmethod
    def mapped() -> int:
        """Ranges of device memory that this process has mapped, of any owner."""
        from ferro_alloc import sim

        return int(sim.report()["mappings"])

    @staticmethod
    def reserved() -> int:
        return int(torch.cuda.memory_reserved())


def serve(commands: Any, answers: Any) -> None:
    if _settings["refuse_pidfd"]:
        refuse_pidfd.refuse()
    torch.set_num_threads(1)
    torch.zeros(1, device="cuda")
    # Each command ends with a collection, which need not scan the objects of torch again.
    gc.collect()
    gc.freeze()
    answers.put("ready")
    while (command := commands.get()) is not None:
        name, arguments = command
        try:
            answer = getattr(Commands, name)(*arguments)
        except Exception:
            answer = "failed: " + traceback.format_exc()
        answers.put(answer)
        del command, arguments, answer
        gc.collect()
    HELD.clear()


class OtherProcess:
    """The other process, as the one that starts it sees it."""

    def __init__(self) -> None:
        # It uses its own module; without a file, the main module of the starter is not run again.
        sys.modules["__main__"].__dict__.pop("__file__")
        context = multiprocessing.get_context("fork" if _settings.get("fork") else "spawn")
        self._commands, self._answers = context.Queue(), context.Queue()
        self.process = context.Process(
            target=serve, args=(self._commands, self._answers), daemon=True
        )
        self.process.start()
        assert self._answer() == "ready"

    def ask(self, name: str, *arguments: Any) -> Any:
        self._commands.put((name, arguments))
        return self._answer()

    def _answer(self) -> Any:
        """Waits as long as the process lives; the caller of this program detects a hang."""
        while True:
            try:
                return self._answers.get(timeout=1)
            except queue.Empty:
                assert self.process.is_alive(), f"it ended with {self.process.exitcode}"

    def end(self) -> None:
        self._commands.put(None)
        self.process.join()
