"""Training and generation with captured graphs take turns on one GPU; the idle one sleeps.

    python -m benchmarks.sleep.turns [--turns 50] [--width 1024] [--smoke]

Runs the turns twice, without sleeping and with it, and prints one line of JSON: whether losses and
tokens are equal to the last bit, the ratio of step times between turns, and the largest reserved
memory while a side sleeps. Without a GPU it runs on the simulated one, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import ferro_alloc
from benchmarks.harness.processes import OURS, use_allocator
from tools.gpu import gpu_count

TOKENS = 64
MIB = 1 << 20


class Generator:
    """Greedy decoding by a captured graph: one step is a replay."""

    def __init__(self, width: int) -> None:
        import torch

        with ferro_alloc.tag("generator"):
            self.embed = torch.nn.Embedding(1000, width, device="cuda")
            self.layers = torch.nn.Sequential(
                *(torch.nn.Linear(width, width, device="cuda") for _ in range(8))
            )
            self.cache = torch.zeros(TOKENS, width, device="cuda")
            self.token = torch.zeros(1, dtype=torch.long, device="cuda")
            self.place = torch.zeros(1, dtype=torch.long, device="cuda")
            self.graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(stream):
                self.step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.step()

    def step(self) -> None:
        hidden = self.layers(self.embed(self.token)).tanh()
        self.cache.index_copy_(0, self.place, hidden)
        scores = (self.cache.sum(0, keepdim=True) + hidden) @ self.embed.weight.T
        self.token.copy_(scores.argmax(-1))
        self.place.add_(1).remainder_(TOKENS)

    def generate(self, first: int) -> list[int]:
        self.token.fill_(first)
        self.place.zero_()
        self.cache.zero_()
        tokens = []
        for _ in range(TOKENS):
            self.graph.replay()
            tokens.append(int(self.token))
        return tokens


class Trainer:
    def __init__(self, width: int) -> None:
        import torch

        with ferro_alloc.tag("trainer"):
            self.model = torch.nn.Sequential(
                *(
                    torch.nn.TransformerEncoderLayer(
                        width, 8, 4 * width, batch_first=True, dropout=0, device="cuda"
                    )
                    for _ in range(6)
                )
            )
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def steps(self, count: int, seconds: list[float]) -> list[float]:
        import torch

        losses = []
        with ferro_alloc.tag("trainer"):
            for n in range(count):
                torch.cuda.synchronize()
                start = time.perf_counter()
                torch.manual_seed(n)
                data = torch.randn(4, 64 + 16 * n, self.model[0].linear1.in_features, device="cuda")
                loss = self.model(data).square().mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                losses.append(loss.item())
                seconds.append(time.perf_counter() - start)
        return losses


def play(turns: int, width: int, sleeps: bool) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    trainer, generator = Trainer(width), Generator(width)
    losses, tokens, left = [], [], []
    seconds: list[list[float]] = []
    for turn in range(turns):
        if sleeps:
            ferro_alloc.sleep("generator")
        seconds.append([])
        losses.append(trainer.steps(3, seconds[-1]))
        if sleeps:
            ferro_alloc.sleep("trainer")
            left.append(torch.cuda.memory_reserved() // MIB)
            ferro_alloc.wake("generator")
        tokens.append(generator.generate(turn % 1000))
        if sleeps:
            ferro_alloc.wake("trainer")
    middle = [sorted(column)[turns // 2] for column in zip(*seconds, strict=True)]
    return {
        "losses": losses,
        "tokens": tokens,
        "steps": middle,
        "left": max(left, default=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--smoke", action="store_true", help="two turns: does it run?")
    parser.add_argument("--output", type=Path, help="where the line goes too")
    given = parser.parse_args()
    if given.smoke:
        given.turns, given.width = 2, 64
    use_allocator(OURS, simulated=gpu_count() == 0, values=True)
    import torch

    torch.use_deterministic_algorithms(True)
    plain = play(given.turns, given.width, sleeps=False)
    torch.cuda.empty_cache()
    slept = play(given.turns, given.width, sleeps=True)
    again = play(given.turns, given.width, sleeps=False)
    result = {
        "device": torch.cuda.get_device_name(),
        "turns": given.turns,
        "the same losses": plain["losses"] == slept["losses"],
        "the same tokens": plain["tokens"] == slept["tokens"],
        "distinct tokens": len({token for row in slept["tokens"] for token in row}),
        "first, second and third step of a turn, beside those without sleeping": [
            round(slept["steps"][n] * 2 / (plain["steps"][n] + again["steps"][n]), 3)
            for n in range(3)
        ],
        "reserved while both sleep, MiB": slept["left"],
    }
    print(json.dumps(result))
    if given.output is not None:
        given.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
