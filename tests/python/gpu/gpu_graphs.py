"""CUDA graphs under the allocator that the first argument names: replays equal eager work."""

import hashlib
import json
import sys

from benchmarks.harness.processes import use_allocator

allocator = sys.argv[1]
use_allocator(allocator, simulated=False)

import torch
import torch.nn.functional as F
from torch import nn

torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
digest = hashlib.sha256()
figures = {}


def note(*tensors):
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().tobytes())


def same(a, b, what):
    assert torch.equal(a.cpu(), b.cpu()), f"{what}: the replay differs from eager work"


def make_model():
    torch.manual_seed(3)
    layers = [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)]
    return nn.Sequential(*layers).cuda()


def warm_up(work):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def capture(work, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result


def batch(seed, rows=256):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 512, generator=generator)


def one_graph_between_eager_work():
    model = make_model()
    x = batch(0).cuda()

    def work():
        return model(torch.cat((x, x * 2))).chunk(2)[1] + x

    with torch.no_grad():
        warm_up(work)
        graph, out = capture(work)
        for seed in range(4):
            x.copy_(batch(seed))
            # Memory of eager work lies between that of the graph; neither may write to the other.
            around = [torch.empty(n, dtype=torch.uint8).fill_(seed) for n in (1000, 3 << 20)]
            around = [tensor.cuda() for tensor in around]
            graph.replay()
            replayed = out.clone()
            same(replayed, work(), "one graph")
            assert all((tensor.cpu() == seed).all() for tensor in around)
            note(replayed)


def graphs_sharing_a_pool():
    """Many batch sizes in one pool, as servers do; all outputs stay alive, and any may be next."""
    model = make_model()
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    before = torch.cuda.memory_reserved()
    with torch.no_grad():
        for rows in (512, 384, 256, 128, 64, 8, 1):
            x = batch(rows, rows).cuda()

            def work(x=x):
                return F.softmax(model(model(x)), -1)

            warm_up(work)
            graphs[rows] = (x, work, *capture(work, pool))
        figures["shared_pool_bytes"] = torch.cuda.memory_reserved() - before
        for seed, rows in enumerate((1, 512, 64, 8, 384, 512, 128, 256, 1)):
            x, work, graph, out = graphs[rows]
            x.copy_(batch(seed + 50, rows))
            graph.replay()
            replayed = out.clone()
            same(replayed, work(), f"{rows} rows in a shared pool")
            note(replayed)


def one_graph_feeding_another():
    model = make_model()
    x = batch(9).cuda()
    with torch.no_grad():
        warm_up(lambda: model(model(x)))
        first, middle = capture(lambda: model(x))
        second, out = capture(lambda: model(middle) * 2, first.pool())
        for seed in range(3):
            x.copy_(batch(seed + 9))
            first.replay()
            second.replay()
            replayed = out.clone()
            same(replayed, model(model(x)) * 2, "two graphs in a row")
            note(replayed)


def a_whole_training_step():
    def train(graphed):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        x = batch(1).cuda()

        def work():
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        warm_up(work)
        graph, loss = None, None
        if graphed:
            optimizer.zero_grad(set_to_none=True)
            graph, loss = capture(work)
        losses = []
        for seed in range(5):
            x.copy_(batch(seed))
            if graph is None:
                loss = work()
            else:
                graph.replay()
            losses.append(loss.clone())
        return [*losses, *model.parameters()]

    for eager, replayed in zip(train(False), train(True), strict=True):
        same(replayed, eager, "a training step")
        note(replayed)


def graphs_give_their_memory_back():
    x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, out = capture(lambda: (x + 1) * 3)
    graph.replay()
    held = torch.cuda.memory_reserved() - before
    assert held >= 2 * (64 << 20), held
    # The memory stays as long as the graph, even if its output is destroyed.
    del out
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before >= 2 * (64 << 20)
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    del graph
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved() - before
    assert left <= 4 << 20, left


one_graph_between_eager_work()
graphs_sharing_a_pool()
one_graph_feeding_another()
a_whole_training_step()
torch.cuda.synchronize()
graphs_give_their_memory_back()
if allocator == "ferro_alloc":
    from ferro_alloc import _C

    _C.check_invariants(0)
print(json.dumps({"digest": digest.hexdigest(), **figures}))
