"""Graphs of decoding steps in an exclusive group, replayed in random order beside eager work.

Every replay's result is compared, to the last bit, with that of the same step run eagerly.
"""

import json
import random
import sys
from collections import deque

from benchmarks.harness.processes import use_allocator

SIMULATED = "--simulated" in sys.argv
"""Most kernels compute nothing there, so the program only shows that it runs."""
use_allocator("ferro_alloc", simulated=SIMULATED)

import torch

from benchmarks.models.decoding import Decoder
from benchmarks.models.llama import ModelShape
from benchmarks.models.workloads import SMALL
from ferro_alloc import graphs

torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
MIB = 1 << 20
NINETEEN = (1, 2, 4, *range(8, 129, 8))
REPLAYS = 200 if SIMULATED else 10_000
STEPS = 10 if SIMULATED else 100


class Mismatches:
    """Counted on the device, so that the host does not wait between replays."""

    def __init__(self):
        self.count = torch.zeros((), dtype=torch.int64, device="cuda")

    def add(self, found, expected):
        self.count += (found != expected).sum()


def make_decoder(shape, rows):
    torch.manual_seed(7)
    decoder = Decoder(shape, rows)
    decoder.tokens.random_(shape.vocabulary)
    decoder.positions.fill_(5)
    return decoder


def random_order(shared_pool):
    """Between replays eager work allocates, writes and checks. Results of graphs other than the
    last one are checked too."""
    decoder = make_decoder(SMALL if SIMULATED else ModelShape(longest=256), max(NINETEEN))
    decoder.warm_up(reversed(NINETEEN))
    expected = {}
    for rows in NINETEEN:
        with torch.no_grad(), torch.cuda.stream(decoder.stream):
            expected[rows] = decoder.step(rows)
    torch.cuda.synchronize()
    group = graphs.exclusive()
    pool = torch.cuda.graph_pool_handle() if shared_pool else None
    if pool:
        group.join(pool)
    captured = {}
    for rows in reversed(NINETEEN):
        captured[rows] = decoder.capture(rows, pool)
        group.join(captured[rows][0])
    wrong_results, wrong_eager = Mismatches(), Mismatches()
    rng = random.Random(11)
    eager, replayed = deque(), []
    for number in range(REPLAYS):
        rows = rng.choice(NINETEEN)
        graph, logits = captured[rows]
        graph.replay()
        wrong_results.add(logits, expected[rows])
        replayed.append(rows)
        other = rng.choice(replayed[-50:])
        wrong_results.add(captured[other][1], expected[other])
        eager.append(
            (
                torch.full((rng.randint(1, 8 * MIB),), number, dtype=torch.int32, device="cuda"),
                number,
            )
        )
        if len(eager) == 4:
            wrong_eager.add(*eager.popleft())
    return {
        "replays": len(replayed),
        "wrong_results": wrong_results.count.item(),
        "wrong_eager": wrong_eager.count.item(),
        "shared_bytes": group.sizes().shared_bytes,
        "scratch_bytes": group.sizes().scratch_bytes,
    }


def generation_while_training():
    """35 batch sizes; weights change between the replays that read them."""
    rows, length = 35, 64
    shape = SMALL if SIMULATED else ModelShape(vocabulary=2_000, width=256, layers=4, heads=4)
    decoder = make_decoder(shape, rows)
    decoder.warm_up(range(rows, 0, -1))
    group = graphs.exclusive()
    captured = {}
    for batch in range(rows, 0, -1):
        captured[batch] = decoder.capture(batch, None)
        group.join(captured[batch][0])
    model = decoder.model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(shape.vocabulary, (8, length), device="cuda")
    wrong = Mismatches()
    rng = random.Random(13)
    losses, generated = [], 0
    for _ in range(STEPS):
        loss = model.loss(text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        batch = rng.randint(1, rows)
        graph, logits = captured[batch]
        for position in range(8):
            decoder.positions.fill_(position)
            decoder.stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(decoder.stream):
                expected = decoder.step(batch)
            torch.cuda.current_stream().wait_stream(decoder.stream)
            expected.record_stream(torch.cuda.current_stream())
            graph.replay()
            wrong.add(logits, expected)
            # The bytes of kernels that compute nothing are not valid tokens.
            following = logits.argmax(-1, keepdim=True).clamp_(0, shape.vocabulary - 1)
            decoder.tokens[:batch] = following
            generated += batch
    return {
        "graphs": len(captured),
        "generated": generated,
        "wrong": wrong.count.item(),
        "losses": [losses[0].item(), losses[-1].item()],
    }


found = {
    "separate": random_order(shared_pool=False),
    "shared": random_order(shared_pool=True),
    "training": generation_while_training(),
}
print(json.dumps(found))
