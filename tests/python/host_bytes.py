"""Compares the contents of tensors in host memory."""

import ctypes

import torch

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def same_bytes(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """As torch.equal of tensors of integers, which takes six times as long."""
    for tensor in (found, expected):
        assert tensor.device.type == "cpu", tensor.device
        assert tensor.is_contiguous()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    difference: int = _memcmp(found.data_ptr(), expected.data_ptr(), expected.nbytes)
    return difference == 0
