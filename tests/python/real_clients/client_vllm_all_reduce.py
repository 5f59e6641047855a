"""vLLM's custom all-reduce in a graph, with two ranks of one host. Its kernels compute nothing:
what counts is that each rank opens what the other captured.

Second argument: how memory of the graph is made plain, if at all.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys

RANK = "FERRO_TEST_RANK"
START = "from ferro_alloc._startup import begin; begin(); import runpy, sys; del sys.argv[0]; "
START += "runpy.run_path(sys.argv[0], run_name='__main__')"


def rank_program(rank):
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.device_allocator.alloc_conf import non_expandable_allocations
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    import ferro_alloc

    allocator, how = sys.argv[1:3]
    if allocator in ("pages", "segments"):
        ferro_alloc.install(strict=True)
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    with set_current_vllm_config(VllmConfig()):
        reducer = CustomAllreduce(torch.distributed.group.WORLD, rank)
    found = {"disabled": reducer.disabled}
    values = torch.ones(1 << 18, device="cuda", dtype=torch.bfloat16)
    around = non_expandable_allocations() if how == "setting" else contextlib.nullcontext()
    graph = torch.cuda.CUDAGraph()
    try:
        with around, reducer.capture(), torch.cuda.graph(graph):
            # A tensor of the graph, as layers give them.
            reduced = reducer.custom_all_reduce(values * 2)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        found["shape"] = list(reduced.shape)
    except RuntimeError as error:
        found["error"] = str(error).split("\n")[0]
    found["expandable"] = sorted(
        {
            segment["is_expandable"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == (0, 0)
        }
    )
    print(json.dumps(found), flush=True)
    # A rank whose partner failed would wait for it.
    os._exit(0)


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", START, *sys.argv],
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, RANK: str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    print(json.dumps({"ranks": said}))


if RANK in os.environ:
    rank_program(int(os.environ[RANK]))
else:
    main()
