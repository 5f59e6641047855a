"""torch.compile with trees of CUDA graphs, under the allocator that the first argument names.

With "exclusive" as the second argument they share scratch with another graph, which replays between
them on a separate stream.
"""

import hashlib
import json
import sys

from benchmarks.harness.processes import use_allocator

allocator = sys.argv[1]
use_allocator(allocator, simulated=False)

import torch
from torch import nn

digest = hashlib.sha256()
losses = []


def note(tensor):
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest.update(data.numpy().tobytes())


torch.manual_seed(5)
width = 256
body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda()
head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32)).cuda()
compiled_body = torch.compile(body, mode="reduce-overhead", dynamic=False)
compiled_head = torch.compile(head, mode="reduce-overhead", dynamic=False)
parameters = [*body.parameters(), *head.parameters()]


def batch(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).cuda()


class Partner:
    """A graph that adds up a vector in scratch of 64 MiB, in one group with the trees."""

    def __init__(self):
        from ferro_alloc import graphs

        self.source = torch.ones(1 << 24, device="cuda")
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = (self.source + 1).sum()
        self.group = graphs.exclusive(self.graph, graphs.compiled_pool())

    def replay(self):
        with torch.cuda.stream(self.stream):
            self.result.zero_()
            self.graph.replay()

    def is_right(self):
        self.stream.synchronize()
        return self.result.item() == 2 << 24


partner = None


def replay_partner():
    if partner is not None:
        partner.replay()


def train(rows, seed):
    """Two compiled functions, the second on the output of the first, forward and backward."""
    torch.compiler.cudagraph_mark_step_begin()
    x = compiled_body(batch(rows, seed))
    replay_partner()
    loss = compiled_head(x).square().mean()
    replay_partner()
    loss.backward()
    replay_partner()
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    losses.append(loss.item())
    note(loss)


def infer(rows, seed, branch):
    """The order of functions depends on `branch`, so the tree of graphs forks."""
    torch.compiler.cudagraph_mark_step_begin()
    with torch.no_grad():
        x = compiled_body(batch(rows, seed))
        replay_partner()
        if branch:
            x = compiled_body(x + 1)
            replay_partner()
        result = compiled_head(x)
        assert result.shape == (rows, 32)
        # Memory of eager work in between, freed and used again while the graphs live.
        noise = torch.randn(rows, 1000, device="cuda").cpu()
        del noise
        note(result)
        expected = head(body(body(batch(rows, seed)) + 1) if branch else body(batch(rows, seed)))
        return (result - expected).abs().max().item()


errors = []
for step in range(6):
    train(64, step)
    if step == 0 and "exclusive" in sys.argv[2:]:
        partner = Partner()  # before anything is recorded
for step in range(5):
    train(96, step)  # another shape: recorded again
for step in range(8):
    errors.append(infer(64, step, branch=step % 3 == 2))
for step in range(3):
    train(64, 100 + step)  # the first shape again
torch.cuda.synchronize()
note(torch.cat([parameter.flatten() for parameter in parameters]))
for parameter in parameters:
    digest.update(str(parameter.shape).encode())

shared = None
if partner is not None:
    sizes = partner.group.sizes()
    shared = [partner.is_right(), sizes.shared_bytes, sizes.scratch_bytes]
before = torch.cuda.memory_reserved()
torch._dynamo.reset()
torch._inductor.cudagraph_trees.reset_cudagraph_trees()
torch.cuda.empty_cache()
if allocator == "ferro_alloc":
    from ferro_alloc import _C

    _C.check_invariants(0)
print(
    json.dumps(
        {
            "digest": digest.hexdigest(),
            "losses": losses,
            "worst_error": max(errors),
            "graph_bytes": before - torch.cuda.memory_reserved(),
            "shared": shared,
        }
    )
)
