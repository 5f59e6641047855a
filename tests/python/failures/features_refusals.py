"""Refusals of the driver as programs see them: type, code and first line of the error.

A call of the same meaning is refused under each allocator, each time with another error.
"""

from tests.python.feature_checks import ALLOCATOR, MIB, check, error_of, finish, take

import torch

import ferro_alloc
from ferro_alloc import sim
from ferro_alloc.graphs import CaptureGuard, DeviceScalar

INVALID, NOT_PERMITTED, UNKNOWN = 1, 800, 999
PAGES = ALLOCATOR == "ferro"


def refused(function, call, result=UNKNOWN):
    """Type, code and lines of the error; the second call must succeed."""
    sim.fault(function, call=1, result=result)
    try:
        call()
    except RuntimeError as error:
        code = getattr(error, "error_code", None)
        found = [type(error).__name__, code, *str(error).strip().splitlines()]
        assert len(error.args) == 1
    else:
        found = []
    finally:
        sim.clear_faults()
    call()
    return found


def head(lines):
    """The part of the error that does not depend on the allocator."""
    return lines[:3]


@check
def new_memory():
    torch.cuda.empty_cache()
    found = {}
    for result in (INVALID, NOT_PERMITTED, UNKNOWN):
        kept = []
        for function in ("cuMemCreate", "cuMemMap") if PAGES else ("cuMemAlloc",):
            lines = refused(function, lambda kept=kept: kept.append(take(30 * MIB)), result)
            found.setdefault(result, head(lines))
            assert head(lines) == found[result], lines
            if PAGES:
                assert lines[-1].startswith(f"ferro_alloc: {function} failed with CUDA_ERROR_")
                assert lines[-1].endswith("on device 0")
        del kept
        torch.cuda.empty_cache()
    return found


@check
def a_launch_of_a_graph():
    with CaptureGuard() as guard:
        take(MIB).zero_()
    return head(refused("cuGraphLaunch", guard.graph.launch))


@check
def an_update_of_a_scalar():
    scalar = DeviceScalar(torch.int32, 1)
    lines = refused("cuMemsetD32Async", lambda: scalar.update(3))
    named = lines[-1].startswith("ferro_alloc: cuMemsetD32Async failed with CUDA_ERROR_UNKNOWN")
    return head(lines), named, int(scalar.tensor.cpu())


@check
def statistics():
    """One of the queries for the statistics is refused, if there are any."""
    kept, side = take(8 * MIB), torch.cuda.Stream()
    kept.record_stream(side)
    del kept
    lines = refused("cuEventQuery", torch.cuda.memory_stats)
    return lines[:1] in ([], ["AcceleratorError"])


@check
def the_cache_of_one_device():
    if not PAGES:
        return True
    view = ferro_alloc.device()
    take(8 * MIB)
    lines = refused("cuEventRecord", view.empty_cache)
    kind, text = error_of(lambda: view.bytes_from_driver(-1))
    return lines[:1] in ([], ["AcceleratorError"]) and kind == "FerroError" and "size" in text


finish()
