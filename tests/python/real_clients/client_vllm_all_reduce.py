"""vLLM's custom all-reduce in a graph, with two ranks of one host. Its kernels compute nothing; the
program checks that each rank opens the memory that the other captured.

Second argument: how the memory of the graph is made plain, if it is.
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
    with around, reducer.capture(), torch.cuda.graph(graph):
        # A tensor of the graph, as layers pass them.
        reduced = reducer.custom_all_reduce(values * 2)
    # Memory of a rank that has ended can't be opened any more.
    torch.distributed.barrier()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    found["shape"] = list(reduced.shape)
    found["expandable"] = sorted(
        {
            segment["is_expandable"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == (0, 0)
        }
    )
    print(json.dumps(found), flush=True)
    # Does not join the threads of vLLM and gloo, which may wait for the other rank.
    os._exit(0)


def outcome(rank):
    """What the rank found, or the end of its output if vLLM ended it."""
    lines = rank.communicate()[0].splitlines()
    return json.loads(lines[-1]) if rank.returncode == 0 else {"error": " ".join(lines[-2:])}


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", START, *sys.argv],
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, RANK: str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    print(json.dumps({"ranks": [outcome(rank) for rank in ranks]}))


if RANK in os.environ:
    rank_program(int(os.environ[RANK]))
else:
    main()
