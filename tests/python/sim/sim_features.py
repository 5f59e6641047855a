"""Calls each part of torch that programs use on a GPU once. Prints the parts that succeeded."""

import gc
import json

import torch
import torch.nn.functional as F
from torch import nn

from ferro_alloc import sim

done = []


def check(function):
    function()
    done.append(function.__name__)


@check
def device_queries():
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == torch.cuda.get_device_name(0)
    assert (properties.major, properties.minor) == (9, 0)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == properties.total_memory


@check
def random_numbers():
    torch.manual_seed(1)
    torch.randn(1000, device="cuda")
    torch.rand(1000, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    F.dropout(torch.ones(1000, device="cuda"), 0.5)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)


@check
def attention():
    for dtype, backend in (
        (torch.bfloat16, "FLASH_ATTENTION"),
        (torch.float32, "EFFICIENT_ATTENTION"),
    ):
        q = torch.zeros(2, 8, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


@check
def convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)
    ).cuda()
    net(torch.zeros(2, 3, 32, 32, device="cuda")).sum().backward()


@check
def optimizers():
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            model = nn.Linear(64, 64, device="cuda")
            optimizer = kind(model.parameters(), lr=0.1, **options)
            model(torch.zeros(4, 64, device="cuda")).sum().backward()
            optimizer.step()


@check
def mixed_precision():
    model = nn.Linear(64, 64, device="cuda")
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.zeros(4, 64, device="cuda")).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@check
def reductions_and_sorting():
    x = torch.zeros(10_000, device="cuda")
    x.sum(), x.cumsum(0), x.sort(), x.topk(10), x.max().item()
    torch.zeros(100, 100, device="cuda").softmax(-1).argmax(-1).tolist()
    torch.linalg.vector_norm(x)


@check
def indexing():
    x = torch.zeros(100, 16, device="cuda")
    index = torch.zeros(10, dtype=torch.long, device="cuda")
    x[index] = 1.0
    x.index_add_(0, index, torch.zeros(10, 16, device="cuda"))
    x.gather(0, index[:, None].expand(-1, 16)), torch.cat([x, x]), torch.where(x > 0, x, x)
    F.embedding(index, x), F.one_hot(index, 10)


@check
def streams_and_events():
    stream, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in "ab")
    with torch.cuda.stream(stream):
        start.record()
        torch.zeros(1000, device="cuda").record_stream(torch.cuda.default_stream())
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0.0


@check
def copies():
    host = torch.arange(100_000, dtype=torch.int32)
    device = host.cuda()
    assert torch.equal(device.cpu(), host)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    back = torch.empty_like(pinned, pin_memory=True)
    back.copy_(pinned.to("cuda", non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host)
    assert torch.equal(device.clone().cpu(), host)


@check
def whole_graph():
    source = torch.zeros(1000, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source.clone()
    source.copy_(torch.arange(1000, dtype=torch.int32).pin_memory(), non_blocking=True)
    graph.replay()
    assert torch.equal(result.cpu(), torch.arange(1000, dtype=torch.int32))


@check
def graphed_callables():
    model = nn.Linear(32, 32, device="cuda")
    sample = torch.zeros(4, 32, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    graphed(sample).sum().backward()


@check
def memory_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.zeros(1 << 20, device="cuda")
    assert pool.snapshot()
    del x


@check
def snapshot():
    torch.cuda.memory._record_memory_history()
    keep = torch.zeros(1 << 20, device="cuda")
    recorded = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert recorded["segments"]
    assert any(entry["action"] == "alloc" for entry in recorded["device_traces"][0])
    del keep


@check
def memory_statistics():
    gc.collect()  # frees the cycles that earlier checks left
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 64 << 20
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


@check
def checkpointing():
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).cuda()
    x = torch.zeros(4, 32, device="cuda", requires_grad=True)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()


print(json.dumps({"done": done, "unsupported": sim.unsupported()}))
