"""Programs whose control flow depends on values: each must end as on a card. Prints the
outcomes."""

import json

import torch
import torch.nn.functional as F
from torch import nn

from ferro_alloc import sim

outcomes = {}


def outcome(function):
    outcomes[function.__name__] = function()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, width, layers=2, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.places(places))
        return self.norm(x) @ self.tokens.weight.t()


@torch.no_grad()
def generate(model, ids, most, end, sample=False):
    """Stops when every row contains the end token, as generation loops of libraries do."""
    unfinished = torch.ones(ids.shape[0], dtype=torch.long, device=ids.device)
    for _ in range(most):
        logits = model(ids)[:, -1, :].float()
        if sample:
            kept = logits.topk(10).values[:, -1:]
            logits = logits.masked_fill(logits < kept, -torch.inf)
            following = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        else:
            following = logits.argmax(-1)
        following = following * unfinished + end * (1 - unfinished)
        ids = torch.cat([ids, following[:, None]], 1)
        unfinished = unfinished.mul(following.ne(end).long())
        if unfinished.max() == 0:
            break
    return ids


@outcome
def generation_of_a_small_model():
    torch.manual_seed(0)
    model = Gpt(100, 32)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    on_host = generate(model, ids, 20, end=99)
    # PyTorch's fused attention has no kernel for the host; its plain attention has one.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        on_device = generate(model.cuda(), ids.cuda(), 20, end=99)
    return {"same": torch.equal(on_device.cpu(), on_host), "warned": len(sim.uncomputed_reads())}


@outcome
def generation_of_a_large_model():
    with torch.device("cuda"):
        model = Gpt(50_000, 256)
        prompt = torch.ones(2, 3, dtype=torch.long)
    greedy = generate(model, prompt, 20, end=0)
    sampled = generate(model, prompt, 20, end=0, sample=True)
    valid = all(bool(((ids >= 0) & (ids < 50_000)).all()) for ids in (greedy, sampled))
    return {"lengths": [greedy.shape[1], sampled.shape[1]], "valid": valid}


@outcome
def suppression_of_boxes():
    def suppress(boxes, scores, most_overlap):
        kept = []
        order = scores.argsort(descending=True)
        while order.numel() > 0:
            first, rest = order[0], order[1:]
            kept.append(first.item())
            corner = torch.maximum(boxes[first, :2], boxes[rest, :2])
            other = torch.minimum(boxes[first, 2:], boxes[rest, 2:])
            shared = (other - corner).clamp(min=0).prod(1)
            area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
            order = rest[shared / (area[first] + area[rest] - shared) <= most_overlap]
        return kept

    torch.manual_seed(1)
    boxes = torch.rand(200, 4)
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(200)
    found = suppress(boxes.cuda(), scores.cuda(), 0.3)
    return {"same": found == suppress(boxes, scores, 0.3), "kept": len(found)}


@outcome
def routing_of_experts():
    """The tokens of each expert, for a router that is computed and one that is too large."""
    counts = {}
    for name, tokens, width in (("small", 64, 32), ("large", 2048, 1024)):
        x = torch.randn(tokens, width, device="cuda")
        router = torch.randn(width, 8, device="cuda")
        weights, chosen = (x @ router).softmax(-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        mask = F.one_hot(chosen, 8).permute(2, 1, 0)
        sizes = []
        for expert in range(8):
            slot, token = torch.where(mask[expert])
            y.index_add_(0, token, x[token] * weights[token, slot, None])
            sizes.append(token.shape[0])
        counts[name] = sizes
    return counts


@outcome
def loss_scaling():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
    scales, moved = [], []
    for step in range(5):
        optimizer.zero_grad()
        before = model.weight.detach().clone()
        x = torch.ones(4, 8, device="cuda")
        scaler.scale((model(x) * (torch.inf if step == 2 else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, model.weight))
    return {"scales": scales, "moved": moved}


@outcome
def checks_of_arguments():
    """Unknown arguments pass the checks of distributions and of quantization."""
    before = len(sim.uncomputed_reads())
    x = torch.randn(1000, 1000, device="cuda")
    x = (x @ x)[:, :64]
    scale = x.exp()
    torch.distributions.Normal(x, scale).sample()
    torch.distributions.Normal(x, F.softplus(x) + 1e-5).log_prob(x)
    torch.distributions.Categorical(probs=x.softmax(-1)).sample()
    torch.distributions.Beta(scale, scale + 1).rsample()
    torch.distributions.Bernoulli(x.sigmoid()).log_prob((x > 0).float())
    torch.fake_quantize_per_channel_affine(x, scale[0], x[0].int(), 1, -128, 127)
    warned = len(sim.uncomputed_reads()) - before
    try:
        torch.distributions.Normal(torch.zeros(2), torch.tensor([1.0, -1.0], device="cuda"))
    except ValueError:
        return {"refused": True, "warned": warned}
    return {"refused": False, "warned": warned}


@outcome
def loops_that_converge():
    x, steps = torch.tensor(2.0, device="cuda"), 0
    while (x * x - 2).abs() > 1e-6:
        x, steps = (x + 2 / x) / 2, steps + 1
    # This value is not computed, and the loop still ends.
    big, rounds = torch.randn(1000, 1000, device="cuda"), 0
    big = big @ big
    while big.norm() > 1 and rounds < 100:
        big, rounds = big * 0.5, rounds + 1
    return {"root": x.item(), "steps": steps, "rounds": rounds}


warned = [[read.place.split(":")[0], read.operator] for read in sim.uncomputed_reads()]
print(json.dumps({"outcomes": outcomes, "warned": warned}))
