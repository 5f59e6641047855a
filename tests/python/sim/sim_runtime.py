"""The runtime's state, through its C interface: last error, user objects of graphs, entry
points."""

import ctypes

from ferro_alloc import sim

runtime = ctypes.CDLL("libcudart.so.13")
pointer = ctypes.c_void_p
OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS = 2, 1, 700


def call(name, *arguments):
    return getattr(runtime, name)(*arguments)


def ok(name, *arguments):
    code = call(name, *arguments)
    assert code == 0, (name, code)


def last_error():
    block = pointer()
    ok("cudaMalloc", ctypes.byref(block), ctypes.c_size_t(1 << 20))
    assert call("cudaMalloc", ctypes.byref(block), ctypes.c_size_t(1 << 50)) == OUT_OF_MEMORY
    assert call("cudaPeekAtLastError") == OUT_OF_MEMORY
    assert call("cudaGetLastError") == OUT_OF_MEMORY
    assert call("cudaGetLastError") == 0
    runtime.cudaGetErrorName.restype = ctypes.c_char_p
    assert runtime.cudaGetErrorName(OUT_OF_MEMORY) == b"cudaErrorMemoryAllocation"


def user_objects():
    destroyed = []
    destroy = ctypes.CFUNCTYPE(None, pointer)(destroyed.append)
    graph, exec_, thing = pointer(), pointer(), pointer()
    ok("cudaGraphCreate", ctypes.byref(graph), 0)
    ok("cudaUserObjectCreate", ctypes.byref(thing), pointer(7), destroy, 1, 1)
    move = 1
    ok("cudaGraphRetainUserObject", graph, thing, 1, move)
    ok("cudaGraphInstantiate", ctypes.byref(exec_), graph, ctypes.c_ulonglong(0))
    ok("cudaGraphDestroy", graph)
    assert destroyed == []
    ok("cudaGraphExecDestroy", exec_)
    assert destroyed == [7]
    assert call("cudaUserObjectRelease", thing, 1) == INVALID_VALUE


def entry_points():
    function, found = pointer(), ctypes.c_int(-1)
    for name, version, status in (
        (b"cuMemCreate", 12000, 0),
        (b"cuStreamGetCaptureInfo", 12030, 0),
        (b"cuNoSuchFunction", 13000, 1),
    ):
        ok(
            "cudaGetDriverEntryPointByVersion",
            name,
            ctypes.byref(function),
            version,
            ctypes.c_ulonglong(0),
            ctypes.byref(found),
        )
        assert found.value == status, name
        assert bool(function.value) == (status == 0), name
    call("cudaGetLastError")


def fatal_errors_stay():
    """This check must be the last one, as this thread keeps the error."""
    sim.fault("cuCtxSynchronize", after=0, result=ILLEGAL_ADDRESS)
    assert call("cudaDeviceSynchronize") == ILLEGAL_ADDRESS
    assert call("cudaGetLastError") == ILLEGAL_ADDRESS
    assert call("cudaGetLastError") == ILLEGAL_ADDRESS


last_error()
user_objects()
entry_points()
fatal_errors_stay()
print("done")
