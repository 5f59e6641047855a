"""Training, inference, the profiler and compiled models."""

from tests.python.feature_checks import KIB, check, finish, statistic, take

import torch
import torch.nn.functional as F
from torch import nn


def traffic(run):
    """The requests of a part of the program, which do not depend on the allocator."""
    run()
    names = [("allocation", "allocated"), ("allocation", "freed"), ("requested_bytes", "allocated")]
    before = [statistic(*pair) for pair in names]
    run()
    return [statistic(*pair) - old for pair, old in zip(names, before, strict=True)]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        heads = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width=128, layers=3, words=1000):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@check
def transformer_with_adamw():
    model = Transformer().cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def epoch():
        for length in (16, 64, 33, 128):
            tokens = torch.zeros(4, length, dtype=torch.long, device="cuda")
            loss = F.cross_entropy(model(tokens).view(-1, 1000).float(), tokens.view(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return traffic(epoch)


@check
def convolutional_network():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def epoch():
        for size in (16, 32):
            net(torch.zeros(4, 3, size, size, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return traffic(epoch)


@check
def inference():
    model = Transformer().cuda().eval()

    def generate():
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            tokens = torch.zeros(2, 4, dtype=torch.long, device="cuda")
            for _ in range(8):
                following = model(tokens)[:, -1:].argmax(-1)
                tokens = torch.cat([tokens, following], dim=1)

    return traffic(generate)


@check
def recomputation():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()

    def step():
        x = torch.zeros(8, 64, device="cuda", requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()

    return traffic(step)


@check
def everything_is_returned():
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


@check
def profiler_sees_every_block_come_and_go():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = [take(size) for size in (100, 5000, 70 * KIB)]
        del kept
        side = torch.cuda.Stream()
        shared = take(9000)
        shared.record_stream(side)
        del shared
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in events if e.device_type() == torch.profiler.DeviceType.CUDA]
    assert sum(sizes) == 0
    return sizes


@check
def compiled_with_graphs():
    """Inductor with cudagraph trees, forward and backward, over two shapes."""
    import torch._inductor.config as config

    config.compile_threads = 1
    config.triton.slow_path_cudagraph_asserts = True
    config.triton.fast_path_cudagraph_asserts = True
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for length in (8, 16):
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(torch.zeros(length, 64, device="cuda", requires_grad=True)).sum().backward()
            model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch._dynamo.reset()


finish()
