"""ferro_alloc.graphs with real kernels, under the allocator that the first argument names."""

import hashlib
import inspect
import json
import sys

from benchmarks.harness.processes import use_allocator

allocator = sys.argv[1]
use_allocator(allocator, simulated=len(sys.argv) > 2)

import torch
from torch import nn

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard, DeviceScalar

torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
FERRO = allocator == "ferro_alloc"
REAL = len(sys.argv) == 2
"""On a simulated GPU most kernels compute nothing, so the program only shows that it runs."""
MIB = 1 << 20
digest = hashlib.sha256()
figures = {}


def note(*tensors):
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().tobytes())


def same(a, b, what):
    assert not REAL or torch.equal(a.cpu(), b.cpu()), f"{what} differs"


def make_model():
    torch.manual_seed(3)
    layers = [nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256)]
    return nn.Sequential(*layers).cuda()


def random_numbers_go_on_from_launch_to_launch():
    x = torch.ones(1 << 16, device="cuda")
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        expected = nn.functional.dropout(x, 0.5)
    with CaptureGuard() as guard:
        found = nn.functional.dropout(x, 0.5)
    drawn = []
    for launch, out in ((plain.replay, expected), (guard.graph.launch, found)):
        torch.manual_seed(5)
        for _ in range(3):
            launch()
            drawn.append(out.clone())
    for mine, theirs in zip(drawn[3:], drawn[:3], strict=True):
        same(mine, theirs, "a launch")
    assert not REAL or not torch.equal(drawn[0], drawn[1])
    note(*drawn)


def failed_captures_leave_nothing():
    x = torch.ones(1 << 16, device="cuda")

    def fail(spoil):
        try:
            with CaptureGuard():
                nn.functional.dropout(x.repeat(8), 0.5)
                if spoil:
                    torch.cuda.synchronize()
                raise KeyError
        except (KeyError, RuntimeError):
            pass

    def free():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    for number in range(10):
        fail(number % 2)
    before = free()
    for number in range(1000 if FERRO else 20):
        fail(number % 2)
    figures["lost_by_failures"] = before - free()
    note(torch.ones(4, device="cuda"))
    torch.rand(4, device="cuda")


def updates_far_ahead_of_the_device():
    """Each launch reads the value that was written before it, for any number of queued launches."""
    count = 300
    scalar = DeviceScalar(torch.float32, -1.0)
    index = DeviceScalar(torch.int64, -1)
    x = torch.ones(1 << 12, device="cuda")
    seen = torch.full((count,), -1.0, device="cuda")
    with CaptureGuard() as guard:
        product = x * scalar.tensor
        seen.index_copy_(0, index.tensor.reshape(1), product[:1])
    if REAL:
        torch.cuda._sleep(200_000_000)  # cycles: about 0.1 s
    for number in range(count):
        scalar.update(number / 2)
        index.update(number)
        guard.graph.launch()
    behind = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert not REAL or behind, "the host waited for the device"
    same(seen, torch.arange(count) / 2, "a value")
    note(seen)


def a_graphed_callable_equals_eager_work():
    model = make_model()
    handle = graphs.graph_pool_handle("callables")
    with torch.no_grad():
        graphed = {
            rows: graphs.make_graphed_callable(
                model, (torch.zeros(rows, 256, device="cuda"),), pool=handle
            )
            for rows in (64, 16, 4)
        }
        for seed, rows in enumerate((4, 64, 16, 64, 4)):
            x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed)).cuda()
            out = graphed[rows](x).clone()
            same(out, model(x), "a graphed callable")
            note(out)
    if FERRO:
        sizes = graphed[64].graph.pool.sizes()
        assert sizes.private_bytes == sizes.live_bytes + sizes.scratch_bytes > 0
        figures["callables"] = sizes.private_bytes


def a_training_loop_of_torchs_graphed_callables():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = graphs.graph_pool_handle("training")
    sample = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,), pool=handle)
    for seed in range(8):
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(seed)).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = graphed(x.requires_grad_()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
    note(*model.parameters())


def a_transformer_generates_with_captured_steps():
    """Sixteen batch sizes, one graph each, one pool; any may be next."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    batches = (64, 56, 48, 40, 32, 28, 24, 20, 16, 12, 8, 6, 4, 3, 2, 1)
    pool = graphs.capture_pool_for_handle(graphs.graph_pool_handle("decode"))
    steps = 12
    captured = {}

    def make(rows):
        """The inputs of one step: tokens, position, cache."""
        options = {"config": config, "max_cache_len": 32}
        known = inspect.signature(StaticCache.__init__).parameters
        if "max_batch_size" in known:
            options |= {"max_batch_size": rows, "device": "cuda", "dtype": torch.float32}
        tokens = torch.zeros(rows, 1, dtype=torch.long, device="cuda")
        return tokens, DeviceScalar(torch.int64, 0), StaticCache(**options)

    def step(tokens, position, cache):
        place = position.tensor.reshape(1)
        out = model(
            input_ids=tokens,
            position_ids=place.expand(tokens.shape[0], 1),
            cache_position=place,
            past_key_values=cache,
            use_cache=True,
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def generate(rows, advance, parts):
        tokens, position, cache = parts
        cache.reset()
        tokens.copy_(torch.arange(rows).reshape(rows, 1) + 1)
        made = []
        for number in range(steps):
            position.update(number)
            following = advance()
            made.append(following.clone())
            tokens.copy_(following)
        return torch.cat(made, 1)

    before = torch.cuda.memory_reserved()
    with torch.no_grad():
        for rows in batches:
            parts = make(rows)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(*parts)  # the cache gets its memory
            torch.cuda.current_stream().wait_stream(side)
            with CaptureGuard(pool) as guard:
                following = step(*parts)
            pool.record_buffer(parts)
            captured[rows] = parts, guard.graph, following
        torch.cuda.empty_cache()
        figures["decode_bytes"] = torch.cuda.memory_reserved() - before
        pool.seal()
        for rows in (1, 64, 8, 3, 48, 64, 2, 24, 16, 56, 40, 32, 28, 20, 12, 6, 4):
            parts, graph, following = captured[rows]

            def advance(graph=graph, following=following):
                graph.launch()
                return following

            replayed = generate(rows, advance, parts)
            eager = generate(rows, lambda parts=parts: step(*parts), parts)
            same(replayed, eager, f"decoding with {rows} rows")
            note(replayed)
    assert pool.buffer_count == len(batches)


random_numbers_go_on_from_launch_to_launch()
failed_captures_leave_nothing()
updates_far_ahead_of_the_device()
a_graphed_callable_equals_eager_work()
a_training_loop_of_torchs_graphed_callables()
a_transformer_generates_with_captured_steps()
torch.cuda.synchronize()
if FERRO:
    from ferro_alloc import _C

    _C.check_invariants(0)
print(json.dumps({"digest": digest.hexdigest(), **figures}))
