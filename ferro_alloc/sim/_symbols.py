"""Short names of kernels, from the symbols of a C++ compiler."""

from __future__ import annotations

import ctypes
import re
from functools import cache

_INNERMOST = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
"""Arguments of a template or a function, without others in them."""


def short_name(symbol: str) -> str:
    """As in "at::cuda::spin_kernel", without arguments and anonymous namespaces; a name that is no
    symbol of C++ as it is."""
    name = _demangled(symbol).replace("(anonymous namespace)::", "").replace("->", "")
    while True:
        shorter = _INNERMOST.sub("", name)
        if shorter == name:
            # A template's result stands in front.
            return name.split()[-1] if name.strip() else symbol
        name = shorter


def _demangled(symbol: str) -> str:
    demangle, free = _functions()
    if demangle is None or not symbol.startswith("_Z"):
        return symbol
    status = ctypes.c_int()
    found = demangle(symbol.encode(), None, None, ctypes.byref(status))
    try:
        text = ctypes.string_at(found).decode(errors="replace") if found else symbol
    finally:
        free(ctypes.c_void_p(found))
    return text


@cache
def _functions() -> tuple[ctypes._NamedFuncPointer | None, ctypes._NamedFuncPointer]:
    """`abi::__cxa_demangle` of the C++ library that torch loads, None without it; and `free`."""
    free = ctypes.CDLL(None).free
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None, free
    demangle.restype = ctypes.c_void_p
    return demangle, free
