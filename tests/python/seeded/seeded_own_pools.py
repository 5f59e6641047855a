"""The allocator behind MemPools of seeded programs that have a custom allocator."""

from __future__ import annotations

import ctypes

import torch


class OwnAllocator:
    """Implements the two functions that a MemPool requires with cudaMalloc and cudaFree."""

    _instance: OwnAllocator | None = None

    @classmethod
    def instance(cls) -> OwnAllocator:
        # Pools may outlive their creator.
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def __init__(self) -> None:
        runtime = ctypes.CDLL("libcudart.so.13")
        word, pointer = ctypes.c_size_t, ctypes.c_void_p
        runtime.cudaMalloc.argtypes = (ctypes.POINTER(pointer), word)
        runtime.cudaFree.argtypes = (pointer,)

        def allocate(size: int, device: int, stream: int) -> int | None:
            made = pointer()
            if runtime.cudaMalloc(ctypes.byref(made), size) == 0:
                return made.value
            runtime.cudaGetLastError()  # otherwise the next call of torch reports it
            return None

        def free(address: int, size: int, device: int, stream: int) -> None:
            runtime.cudaFree(address)

        self._kept = (
            ctypes.CFUNCTYPE(pointer, word, ctypes.c_int, pointer)(allocate),
            ctypes.CFUNCTYPE(None, pointer, word, ctypes.c_int, pointer)(free),
        )
        addresses = [ctypes.cast(function, pointer).value for function in self._kept]
        self.functions = torch._C._cuda_customAllocator(*addresses)
