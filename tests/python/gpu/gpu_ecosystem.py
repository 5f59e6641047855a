"""Programs other than plain training on a GPU, unchanged, under the given allocator.

Every check returns values that do not depend on the allocator: losses to the last bit, tokens,
counts.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

from tests.python.feature_checks import FERRO, MIB, check, churn_under_pressure, finish, take

import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False


def losses_of(model, optimizer, batches, loss_of):
    losses = []
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    assert len(set(losses)) > 1, "nothing was learned"
    return losses


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 7


@check
def data_loader_with_pinned_memory_and_workers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 7)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=16, num_workers=2, pin_memory=True)

    def loss_of(model, batch):
        images, labels = (part.cuda(non_blocking=True) for part in batch)
        return nn.functional.cross_entropy(model(images), labels)

    return losses_of(model, optimizer, (b for _ in range(2) for b in loader), loss_of)


@check
def convolutions_with_benchmarking():
    # The algorithms may differ from run to run, so the losses are compared loosely by the test.
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    layers = []
    for _ in range(4):
        layers += [nn.LazyConv2d(64, 3, padding=1), nn.LazyBatchNorm2d(), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(10)).cuda()
    images = [torch.randn(8, 3, 64 + 16 * i, 64, device="cuda") for i in range(6)]
    model(images[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    label = torch.arange(8, device="cuda")
    found = losses_of(
        model, optimizer, images, lambda m, x: nn.functional.cross_entropy(m(x), label)
    )
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    return [round(float.fromhex(loss), 2) for loss in found]


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).cuda()


@check
def a_transformers_model_trains():
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randint(512, (4, 32 + 16 * i), generator=generator).cuda() for i in range(8)]
    return losses_of(model, optimizer, batches, lambda m, ids: m(input_ids=ids, labels=ids).loss)


@check
def a_transformers_model_generates():
    model = tiny_llama().eval()
    prompt = torch.arange(12, device="cuda").reshape(2, 6)
    mask = torch.ones_like(prompt)
    tokens = model.generate(
        prompt, attention_mask=mask, max_new_tokens=48, do_sample=False, pad_token_id=0
    )
    return tokens.tolist()


@check
def a_memory_timeline_of_the_profiler():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    settings = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with torch.profiler.profile(activities=activities, **settings) as profiler:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.json"
        profiler.export_memory_timeline(str(file), device="cuda:0")
        assert file.stat().st_size > 1000
    changes = [e.self_device_memory_usage for e in profiler.events() if e.name == "[memory]"]
    return len(changes), sum(change for change in changes if change > 0) > 0


SOURCE = """
#include <cuda_runtime_api.h>
#include <sys/types.h>
static int live = 0, most = 0;
extern "C" void* take(ssize_t bytes, int device, cudaStream_t stream) {
  void* ptr = nullptr;
  if (cudaMalloc(&ptr, bytes) != cudaSuccess) { cudaGetLastError(); return nullptr; }
  if (++live > most) most = live;
  return ptr;
}
extern "C" void give(void* ptr, ssize_t bytes, int device, cudaStream_t stream) {
  cudaFree(ptr);
  --live;
}
extern "C" int live_segments() { return live; }
extern "C" int most_segments() { return most; }
"""


@check
def a_mem_pool_with_an_allocator_of_its_own():
    import ctypes
    import importlib

    setup = importlib.import_module("setup")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "own.cpp", Path(folder) / "own.so"
        source.write_text(SOURCE)
        include = f"-I{setup.cuda_include(13)}"
        command = ["g++", "-shared", "-fPIC", include, str(source), str(setup.cuda_runtime(13))]
        subprocess.run([*command, "-o", str(library)], check=True)
        counts = ctypes.CDLL(str(library))
        own = torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give")
        pool = torch.cuda.MemPool(own.allocator())
        with torch.cuda.use_mem_pool(pool):
            kept = [torch.full((MIB // 4,), float(i), device="cuda") for i in range(3)]
        found = [counts.live_segments(), pool.use_count(), len(pool.snapshot())]
        found.append([kept[i].sum().item() for i in range(3)])
        # In a graph too.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            out = kept[0] + kept[1]
        graph.replay()
        found.append(out.sum().item())
        del out, graph, kept[1:]
        del pool
        found.append(counts.live_segments())
        kept.clear()
        torch.cuda.empty_cache()
        found.append(counts.live_segments())
        return found


@check
def a_key_value_cache_sized_from_the_statistics():
    """Does as serving engines: runs once, reads the free memory, allocates nearly all of it, and
    uses it."""
    model = tiny_llama().half().eval()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free_before, total = torch.cuda.mem_get_info()
    with torch.inference_mode():
        model(torch.zeros(64, 512, dtype=torch.long, device="cuda"))
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    peak = stats["allocated_bytes.all.peak"]
    torch.cuda.empty_cache()
    outside = total - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    assert outside > 0, "what is not ours cannot be negative"
    wanted = int(0.5 * total) - peak - outside
    block = 2 * 4 * 16 * 32 * 4 * 2 * 64
    blocks = wanted // block // 4
    caches = [torch.zeros(blocks, block, dtype=torch.uint8, device="cuda") for _ in range(4)]
    used = total - torch.cuda.mem_get_info()[0]
    assert used < 0.5 * total + 64 * MIB
    assert abs(torch.cuda.memory_reserved() - sum(c.numel() for c in caches)) < 0.02 * total
    assert free_before > 0
    del caches
    torch.cuda.empty_cache()


def registered_buffers(backend):
    """The sums of a communicator while memory around its registered buffers is short and moves."""
    import torch.distributed as dist

    pools = [torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)]
    buffers = []
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            buffers.append(torch.arange(5 * MIB, dtype=torch.float32, device="cuda"))
        backend.register_mem_pool(pool)
    sums = []
    for _ in range(3):
        churn_under_pressure(8)
        for buffer in buffers:
            dist.all_reduce(buffer)
            sums.append(buffer.double().sum().item())
    for pool in pools:
        backend.deregister_mem_pool(pool)
    return sums


@check
def nccl_data_parallel_and_fully_sharded_in_one_process():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    os.environ["MASTER_PORT"] = "29611" if FERRO else "29612"
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))

    def model():
        torch.manual_seed(4)
        return nn.Sequential(
            *[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)]
        ).cuda()

    batches = [
        torch.randn(32, 512, generator=torch.Generator().manual_seed(i)).cuda() for i in range(6)
    ]

    def trained(wrapped):
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        return losses_of(wrapped, optimizer, batches, lambda m, x: m(x).square().mean())

    found = [trained(DistributedDataParallel(model(), device_ids=[0]))]
    mesh = init_device_mesh("cuda", (1,))
    sharded = model()
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    found.append(trained(fully_shard(sharded, mesh=mesh)))
    tensor = take(8 * MIB)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    found.append(registered_buffers(dist.group.WORLD._get_backend(torch.device("cuda", 0))))
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    finish()
    sys.exit(0)
