"""Makes pidfd_getfd fail with EPERM in this process, as a container or Yama does."""

import ctypes
import os
import struct

_NR_PIDFD_GETFD = 438
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse() -> None:
    code = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 1, _NR_PIDFD_GETFD),
            (_RETURN, 0, 0, _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def take_descriptor(pidfd: int, descriptor: int) -> bool:
    taken = int(ctypes.CDLL(None).syscall(_NR_PIDFD_GETFD, pidfd, descriptor, 0))
    for opened in (pidfd, taken):
        if opened >= 0:
            os.close(opened)
    return taken >= 0
