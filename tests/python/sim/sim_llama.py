"""Trains a Llama-shaped model of 0.2 B parameters on lengths that vary from step to step."""

import json
import time

import torch
import torch.nn.functional as F
from torch import nn

from ferro_alloc import sim

WIDTH, HEADS, LAYERS, VOCABULARY = 1024, 16, 8, 32000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.up = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.down = nn.Linear(11 * WIDTH // 4, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(0)
with torch.device("cuda"):
    model = Llama().bfloat16()
parameters = sum(p.numel() for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
generator = torch.Generator().manual_seed(0)
times = []
for _ in range(12):
    length = 64 * int(torch.randint(4, 24, (1,), generator=generator))
    start = time.perf_counter()
    tokens = torch.randint(0, VOCABULARY, (4, length), device="cuda")
    logits = model(tokens)
    loss = F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - start)
torch.cuda.synchronize()
print(
    json.dumps(
        {
            "parameters": parameters,
            "median_step_ms": 1e3 * sorted(times)[len(times) // 2],
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "unsupported": sim.unsupported(),
        }
    )
)
