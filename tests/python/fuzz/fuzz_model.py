"""A deliberately naive model of the memory that a program has allocated."""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch

EDGE = 4096
"""Bytes at each end of a block that carry its tag."""


@dataclass(eq=False)
class Block:
    """One live allocation: of a tensor or of the raw call."""

    address: int
    size: int
    tag: int
    tensor: torch.Tensor | None
    counted: bool = True
    """Whether the statistics include it; they exclude memory that bypasses the cache."""
    exact: bool = True
    """Whether its allocated size is known: the size rounded to 512 bytes."""
    native: bool = False
    recorded: bool = False
    writable: bool = True
    keeps: list[Any] = field(default_factory=list)

    def edges(self) -> list[tuple[int, int]]:
        length = min(self.size, EDGE)
        return [(self.address, length), (self.address + self.size - length, length)]


class Driver:
    """Reads and writes of device memory through the runtime, past PyTorch."""

    def __init__(self) -> None:
        runtime = ctypes.CDLL("libcudart.so.13")
        self._set, self._copy = runtime.cudaMemsetAsync, runtime.cudaMemcpy
        self._set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._host = ctypes.create_string_buffer(EDGE)

    def write(self, address: int, size: int, byte: int, stream: int = 0) -> None:
        status = self._set(address, byte, size, stream)
        assert status == 0, f"cudaMemsetAsync returned {status}"

    def read(self, address: int, size: int) -> bytes:
        status = self._copy(self._host, address, size, 2)
        assert status == 0, f"cudaMemcpy returned {status}"
        return self._host.raw[:size]


class Model:
    """The live blocks, and the sums that follow from them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.blocks: list[Block] = []
        self._intervals: list[tuple[int, int]] = []
        self._base = self._statistics()
        self.slack = 0
        """Bytes of the previous allocator whose frees it may not have noticed yet."""
        """The same for the classic layout, which notices them at its next allocation."""

    @staticmethod
    def _statistics() -> dict[str, int]:
        stats = torch._C._cuda_memoryStats(0)
        names = ("allocation", "allocated_bytes", "active", "requested_bytes")
        return {name: stats[name]["all"]["current"] for name in names}

    def add(self, block: Block) -> Block:
        at = bisect.bisect(self._intervals, (block.address, 0))
        before, after = self._intervals[max(0, at - 1) : at], self._intervals[at : at + 1]
        assert not before or sum(before[0]) <= block.address, ("overlaps", before, block)
        assert not after or block.address + block.size <= after[0][0], ("overlaps", after, block)
        self._intervals.insert(at, (block.address, block.size))
        self.blocks.append(block)
        if block.writable:
            self.write(block)
        return block

    def write(self, block: Block) -> None:
        for address, length in block.edges():
            self._driver.write(address, length, block.tag)

    def remove(self, block: Block) -> None:
        """Called before a free; the contents must be as they were written."""
        self.check_contents(block)
        self.forget(block)

    def forget(self, block: Block) -> None:
        self.blocks.remove(block)
        at = bisect.bisect_left(self._intervals, (block.address, 0))
        assert self._intervals[at] == (block.address, block.size)
        del self._intervals[at]
        if block.recorded and block.counted:
            self.slack += block.size * block.native

    def check_contents(self, block: Block) -> None:
        for address, length in block.edges() if block.writable else ():
            found = self._driver.read(address, length)
            assert found == bytes([block.tag]) * length, ("contents of", block)

    def check_sums(self) -> None:
        found = self._statistics()
        counted = [block for block in self.blocks if block.counted]
        grown = {name: found[name] - self._base[name] for name in found}
        requested = sum(block.size for block in counted)
        allocated = sum(-(-block.size // 512) * 512 for block in counted)
        assert grown["allocation"] == len(counted), (grown, len(counted))
        if grown["requested_bytes"] > requested + self.slack:
            self.slack += self._pending_at_previous()
        assert requested <= grown["requested_bytes"] <= requested + self.slack, (grown, requested)
        assert allocated <= grown["allocated_bytes"], (grown, allocated)
        if all(block.exact for block in counted):
            assert allocated == grown["allocated_bytes"], (grown, allocated)
        if not self.slack:
            assert grown["active"] == len(counted), (grown, len(counted))

    @staticmethod
    def _pending_at_previous() -> int:
        """Bytes that wait for streams in memory of the previous allocator, which also serves
        requests for which ferro_alloc has no room."""
        return sum(
            block["requested_size"]
            for segment in torch.cuda.memory._snapshot()["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_pending_free" and not segment["is_expandable"]
        )

    def check_snapshot(self) -> None:
        """Segments are tiled by their blocks, and every counted block is one of them."""
        known = {}
        for segment in torch.cuda.memory_snapshot():
            address = segment["address"]
            for part in segment["blocks"]:
                assert part["address"] == address
                if part["state"] == "active_allocated":
                    known[address] = part["requested_size"]
                address += part["size"]
            assert address == segment["address"] + segment["total_size"]
        for block in self.blocks:
            if block.counted:
                assert known.get(block.address) == block.size, (known.get(block.address), block)
