"""ferro_alloc as a sleep-mode backend of vLLM, with vLLM's own worker where vLLM is installed.

Arguments: `stub` or `real` for the vLLM; the backend; and whether ferro_alloc is installed. Prints
the results as JSON.
"""

import importlib
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import ferro_alloc

which, backend_name, installed = sys.argv[1:4]
if which == "stub":
    sys.path.insert(0, str(Path(__file__).with_name("vllm_stub")))
MIB = 1 << 20
logged = []


class Listener(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


logging.getLogger("ferro_alloc").addHandler(Listener(logging.WARNING))
if installed == "installed":
    ferro_alloc.install()
# The entry point vllm.general_plugins, as vLLM calls it; more than once.
register = importlib.import_module("ferro_alloc.vllm_plugin").register
register()
register()
from vllm.device_allocator.sleep_mode_backend import (
    SleepModeBackend,
    SleepModeBackendFactory,
)
from vllm.v1.worker.gpu_worker import Worker

register()


def on_device():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


class Config(SimpleNamespace):
    """Settings of vLLM, of which the missing ones are off."""

    def __getattr__(self, name):
        return None


def new_worker():
    worker = Worker.__new__(Worker)
    model_config = Config(
        enable_sleep_mode=True,
        enable_cumem_allocator=False,
        sleep_mode_backend=backend_name,
        enable_nccl_comm_suspend=False,
        sleep_preserve_parameter_names=[],
    )
    worker.vllm_config = Config(model_config=model_config)
    worker.model_config = model_config
    worker.model_runner = Config(model=None)
    worker._sleep_mode_backend = None
    worker._sleep_saved_buffers = {}
    worker._sleep_saved_draft_buffers = {}
    worker._sleep_saved_parameters = {}
    worker.get_draft_model = lambda: None
    worker.synchronize_device = torch.cuda.synchronize
    return worker


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(
            [torch.nn.Parameter(filled(20, n), requires_grad=False) for n in range(3)]
        )
        self.register_buffer("table", filled(2, 9))


def refusal(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def allocate(worker):
    pool = worker._maybe_get_memory_pool_context
    with pool("weights"):
        worker.model_runner.model = Model()
        del_me = filled(30, 0)  # as weights of a higher precision, before they are quantized
        del del_me
    with pool("runtime"):
        runtime = [filled(4, 5)]
        with pool("kv_cache"):
            cache = filled(100, 1)
        runtime.append(filled(4, 6))
    with pool("workspace"):
        workspace = filled(6, 2)
    return runtime, cache, workspace


def other_backend():
    """An engine with another backend behaves as without the plugin."""
    worker = new_worker()
    memory = allocate(worker)
    tags = list(ferro_alloc.status().devices[0].tags) if installed == "installed" else []
    return {"pools of vLLM": getattr(Worker, "pools_of_vllm", None), "tags": tags, "n": len(memory)}


def our_backend():
    worker = new_worker()
    if installed != "installed":
        supported = SleepModeBackendFactory.get_backend_class(backend_name).is_supported()
        refusals = [refusal(lambda: worker._maybe_get_memory_pool_context("weights"))]
        refusals.append(refusal(lambda: worker.sleep(1)))
        return {"supported": supported, "refusals": refusals, "logged": logged}
    outside = filled(50, 77)
    runtime, cache, workspace = allocate(worker)
    model = worker.model_runner.model
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read = model.layers[1].clone()
        read_cache = cache[:1000].clone()
    places = [t.data_ptr() for t in (*model.parameters(), *model.buffers(), *runtime, cache)]
    full = on_device()

    def state():
        model_good = all(holds(layer, n) for n, layer in enumerate(model.layers))
        good = model_good and holds(model.table, 9)
        good = good and holds(runtime[0], 5) and holds(runtime[1], 6) and holds(outside, 77)
        cache.fill_(3)
        workspace.fill_(3)
        graph.replay()
        return good and holds(read, 1) and holds(read_cache, 3)

    found = {"steps": [], "good": [state()]}

    def step(name, call):
        call()
        found["steps"].append([name, full - on_device(), worker.sleep_mode_backend.state()])

    def load():
        for n, layer in enumerate(model.layers):
            layer.fill_(n)

    for _ in range(3):
        step("sleep 1", lambda: worker.sleep(1))
        found["good"].append(holds(outside, 77))
        step("wake_up weights", lambda: worker.wake_up(["weights"]))
        step("wake_up kv_cache", lambda: worker.wake_up(["kv_cache"]))
        found["good"].append(state())
        step("sleep 2", lambda: worker.sleep(2))
        step("discard too", lambda: worker.discard(("kv_cache",)))
        step("wake_up", worker.wake_up)
        load()
        found["good"].append(state())
        step("discard", lambda: worker.discard(("kv_cache",)))
        step("wake_up kv_cache", lambda: worker.wake_up(["kv_cache"]))
        found["good"].append(state())
    found["places"] = places == [
        t.data_ptr() for t in (*model.parameters(), *model.buffers(), *runtime, cache)
    ]
    backend = worker.sleep_mode_backend
    found["flags"] = [
        isinstance(backend, SleepModeBackend),
        backend.preserves_communicators(),
        backend.preserves_compiled_artifacts(),
    ]
    found["another engine"] = refusal(
        lambda: new_worker()._maybe_get_memory_pool_context("weights")
    )
    if which == "stub":
        from vllm.device_allocator.cumem import CuMemAllocator

        CuMemAllocator.instance = CuMemAllocator(usage=0)
        worker.sleep(1)
        found["calls"] = [list(CuMemAllocator.instance.calls)]
        worker.wake_up()
        CuMemAllocator.instance.usage = 1
        worker.sleep(1)
        worker.wake_up(["weights"])
        worker.wake_up()
        worker.discard(("kv_cache",))
        worker.wake_up()
        found["calls"].append(CuMemAllocator.instance.calls)
        found["pools of vLLM"] = Worker.pools_of_vllm
    found["logged"] = logged
    return found


print(json.dumps(our_backend() if backend_name == "ferro_alloc" else other_backend()))
