"""Prints the results of the simulated NVML as JSON, read by its C interface."""

import ctypes
import json
import sys

NVLINK = 2


class Process(ctypes.Structure):
    _fields_ = [
        ("process", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("instances", ctypes.c_uint * 2),
    ]


def load():
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    return nvml


def device(nvml, how, name):
    handle = ctypes.c_void_p()
    assert getattr(nvml, f"nvmlDeviceGetHandleBy{how}")(name, ctypes.byref(handle)) == 0
    return handle


def index(nvml, handle):
    number = ctypes.c_uint()
    assert nvml.nvmlDeviceGetIndex(handle, ctypes.byref(number)) == 0
    return number.value


def holders(number):
    """Bytes by process."""
    nvml = load()
    handle = device(nvml, "Index_v2", number)
    count = ctypes.c_uint(0)
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None) == 7
    found = (Process * count.value)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found) == 0
    return {entry.process: entry.bytes for entry in found}


def text(function, handle):
    buffer = ctypes.create_string_buffer(96)
    assert function(handle, buffer, 96) == 0
    return buffer.value.decode()


def main():
    import torch

    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    while nvml.nvmlShutdown() == 0:
        pass
    uninitialised = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    load()
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    first, second = (device(nvml, "Index_v2", number) for number in range(2))
    uuids = [text(nvml.nvmlDeviceGetUUID, handle) for handle in (first, second)]
    memory = (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetMemoryInfo(first, memory) == 0
    major, minor, link = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    assert (
        nvml.nvmlDeviceGetCudaComputeCapability(first, ctypes.byref(major), ctypes.byref(minor))
        == 0
    )
    assert nvml.nvmlDeviceGetP2PStatus(first, second, NVLINK, ctypes.byref(link)) == 0
    none = ctypes.c_void_p()
    found = {
        "devices": count.value,
        "uninitialised": uninitialised,
        "uuids agree": [
            f"GPU-{torch.cuda.get_device_properties(number).uuid}" == uuid
            for number, uuid in enumerate(uuids)
        ],
        "by uuid": index(nvml, device(nvml, "UUID", uuids[1].encode())),
        "by pci bus": index(nvml, device(nvml, "PciBusId_v2", b"00000000:11:00.0")),
        "name": text(nvml.nvmlDeviceGetName, first),
        "memory": list(memory),
        "capability": [major.value, minor.value],
        "nvlink": link.value,
        "no such device": nvml.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(none)),
        "not simulated": nvml.nvmlDeviceGetTemperature(first, 0, ctypes.byref(count)),
    }
    del kept
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
