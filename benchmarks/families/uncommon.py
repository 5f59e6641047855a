"""Families with sparse gradients, rollouts, searches, neighbours, graphs, and chosen tokens.

They need nothing but torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.training import SEED, make, tokens, train

NUMBERS = 13
"""Numbers of each row of the recommender, beside its bags."""
ACTIONS = 18
CLASSES = 40

Shapes = Sequence[tuple[int, int]]


def _layers(*widths: int) -> nn.Sequential:
    parts = [part for w, v in pairwise(widths) for part in (nn.Linear(w, v), nn.ReLU(inplace=True))]
    return nn.Sequential(*parts[:-1])


class Recommender(nn.Module):
    """The products of the means, sums or maxima of bags decide. Large tables have sparse
    gradients."""

    def __init__(self, rows: Sequence[int], sparse_from: int, width: int) -> None:
        super().__init__()
        modes = ("sum", "mean", "max")
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(
                count,
                width,
                mode="sum" if count >= sparse_from else modes[number % 3],
                sparse=count >= sparse_from,
            )
            for number, count in enumerate(rows)
        )
        self.bottom = _layers(NUMBERS, 512, 256, width)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = _layers(width + pairs, 1024, 1024, 512, 1)
        places = torch.tril_indices(len(rows) + 1, len(rows) + 1, offset=-1)
        self.register_buffer("places", places)

    def forward(self, numbers: Tensor, bags: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        known = self.bottom(numbers)
        each = [bag(*given) for bag, given in zip(self.bags, bags, strict=True)]
        together = torch.stack([known, *each], dim=1)
        products = together @ together.transpose(1, 2)
        chosen = products[:, self.places[0], self.places[1]]
        result: Tensor = self.top(torch.cat([known, chosen], dim=1))[:, 0]
        return result


def recommender(shapes: Shapes, rows: Sequence[int], sparse_from: int, width: int) -> None:
    """A recommender with bags of different lengths, in floats. A shape is a number of rows and the
    mean length of their bags."""
    model = make(lambda: Recommender(rows, sparse_from, width))
    sparse = [bag.weight for bag in model.bags if bag.sparse]
    dense = [p for p in model.parameters() if all(p is not other for other in sparse)]
    optimizers = [torch.optim.SparseAdam(sparse), torch.optim.AdamW(dense)]

    def bag(count: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(1, 2 * length, (batch,))
        # Few ids are frequent.
        ids = (torch.rand(int(lengths.sum())) ** 3 * count).long()
        return ids.cuda(), (lengths.cumsum(0) - lengths).cuda()

    for batch, length in shapes:
        numbers = torch.randn(batch, NUMBERS).cuda()
        bags = [bag(count, batch, length) for count in rows]
        clicks = torch.randint(2, (batch,)).float().cuda()
        loss = F.binary_cross_entropy_with_logits(model(numbers, bags), clicks)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss.item()


class Player(nn.Module):
    """Logits of actions, and the value of a state."""

    def __init__(self, widths: Sequence[int], hidden: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for inside, outside in pairwise((4, *widths)):
            stage = nn.ModuleList([nn.Conv2d(inside, outside, 3, padding=1)])
            stage.extend(nn.Conv2d(outside, outside, 3, padding=1) for _ in range(4))
            self.stages.append(stage)
        self.hidden = nn.Linear(widths[-1] * 11 * 11, hidden)
        self.actor = nn.Linear(hidden, ACTIONS)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        seen = frames.float() / 255
        for first, *pairs in self.stages:
            seen = F.max_pool2d(first(seen), 3, stride=2, padding=1)
            for one, other in (pairs[:2], pairs[2:]):
                seen = seen + other(F.relu(one(F.relu(seen))))
        hidden = F.relu(self.hidden(F.relu(seen).flatten(1)))
        return self.actor(hidden), self.critic(hidden)[:, 0]


def _chances(logits: Tensor, actions: Tensor) -> Tensor:
    """Logarithms of the chances of these actions."""
    return logits.log_softmax(1).gather(1, actions[:, None])[:, 0]


def _rollout(model: nn.Module, games: int, steps: int) -> dict[str, Tensor]:
    """The steps of all games, with the chances and the values that the model gave them."""
    shapes = {"frames": (steps, games, 4, 84, 84)}
    types = {"frames": torch.uint8, "actions": torch.long}
    names = ("frames", "actions", "chances", "values", "rewards", "going")
    buffer = {
        name: torch.empty(
            shapes.get(name, (steps, games)), dtype=types.get(name, torch.float), device="cuda"
        )
        for name in names
    }
    frames = torch.randint(256, (games, 4, 84, 84), dtype=torch.uint8, device="cuda")
    for step in range(steps):
        logits, values = model(frames)
        actions = torch.multinomial(logits.softmax(1), 1)[:, 0]
        ended = torch.rand(games, device="cuda") < 0.05
        rewards = torch.randn(games, device="cuda")
        row = (frames, actions, _chances(logits, actions), values, rewards, (~ended).float())
        for name, value in zip(names, row, strict=True):
            buffer[name][step] = value
        new = torch.randint(256, (games, 1, 84, 84), dtype=torch.uint8, device="cuda")
        frames = torch.cat([frames[:, 1:], new], dim=1)
        # Games that ended begin with four equal frames.
        frames[ended] = new[ended].expand(-1, 4, -1, -1)
    return {**buffer, **_advantages(buffer, model(frames)[1])}


def _advantages(buffer: dict[str, Tensor], value: Tensor) -> dict[str, Tensor]:
    """By generalized estimation; `value` is of the states after the last step."""
    advantages = torch.empty_like(buffer["rewards"])
    advantage = torch.zeros_like(value)
    for step in reversed(range(len(advantages))):
        going, before = buffer["going"][step], buffer["values"][step]
        error = buffer["rewards"][step] + 0.99 * going * value - before
        advantage = error + 0.99 * 0.95 * going * advantage
        advantages[step], value = advantage, before
    return {"advantages": advantages, "returns": advantages + buffer["values"]}


def ppo(batches: Sequence[int], steps: int, parts: int, widths: Sequence[int]) -> None:
    """A policy of frames learns from its own games, in floats. A batch is a number of games; each
    epoch passes the steps of all of them in `parts` parts."""
    model = make(lambda: Player(widths, 512))
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5)
    for games in batches:
        with torch.no_grad():
            rollout = _rollout(model, games, steps)
        seen = {name: value.flatten(0, 1) for name, value in rollout.items()}
        for _epoch in range(2):
            for chosen in torch.randperm(games * steps, device="cuda").chunk(parts):
                part = {name: value[chosen] for name, value in seen.items()}
                logits, values = model(part["frames"])
                ratio = (_chances(logits, part["actions"]) - part["chances"]).exp()
                gain = part["advantages"]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy = -torch.min(gain * ratio, gain * ratio.clamp(0.9, 1.1)).mean()
                spread = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
                loss = policy + 0.5 * F.mse_loss(values, part["returns"]) - 0.01 * spread
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        loss.item()


class Tower(nn.Module):
    """A text's direction: the mean of its tokens after some layers."""

    def __init__(self, vocabulary: int, width: int, layers: int, size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, size)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.normalize(self.head(hidden.mean(1)), dim=1)


def retrieval(
    shapes: Shapes, vocabulary: int, width: int, layers: int, size: int, documents: int, chunk: int
) -> None:
    """Two towers, in mixed precision: each text's own answer scores against those of all others.
    Then the nearest of all documents are searched, one chunk at a time."""
    towers = make(lambda: nn.ModuleList(Tower(vocabulary, width, layers, size) for _ in range(2)))
    queries, answers = towers

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        scores = 20 * queries(pair[0]) @ answers(pair[1]).t()
        own = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2

    def given() -> Iterator[tuple[Tensor, Tensor]]:
        for shape in shapes:
            yield tokens(*shape, vocabulary), tokens(*shape, vocabulary)

    train(towers, given(), loss, autocast=True)
    towers.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        batch, length = shapes[0]
        index = torch.empty(documents, size, device="cuda")
        for first in range(0, documents, 4 * batch):
            count = min(4 * batch, documents - first)
            index[first : first + count] = answers(tokens(count, length, vocabulary))
        asked = queries(tokens(batch // 4, length, vocabulary))
        best = torch.full((len(asked), 100), -torch.inf, device="cuda")
        places = torch.zeros(len(asked), 100, dtype=torch.long, device="cuda")
        for first in range(0, documents, chunk):
            found = (asked @ index[first : first + chunk].t()).float().topk(100, dim=1)
            scores = torch.cat([best, found.values], dim=1)
            best, chosen = scores.topk(100, dim=1)
            places = torch.cat([places, found.indices + first], dim=1).gather(1, chosen)
        places.cpu()


def _neighbours(points: Tensor, others: Tensor, count: int) -> Tensor:
    with torch.no_grad():
        return torch.cdist(points, others).topk(count, dim=2, largest=False).indices


def _gather(features: Tensor, places: Tensor) -> Tensor:
    """The features of each place: batch, points, neighbours, width."""
    flat = places.flatten(1)[:, :, None].expand(-1, -1, features.shape[2])
    return features.gather(1, flat).unflatten(1, places.shape[1:])


def _farthest(points: Tensor, count: int) -> Tensor:
    """Points that lie far from each other: each is the farthest from those before it."""
    chosen = torch.zeros(len(points), count, dtype=torch.long, device=points.device)
    distances = torch.full(points.shape[:2], torch.inf, device=points.device)
    last = torch.zeros(len(points), dtype=torch.long, device=points.device)
    rows = torch.arange(len(points), device=points.device)
    for number in range(count):
        chosen[:, number] = last
        centre = points[rows, last][:, None]
        distances = torch.minimum(distances, (points - centre).square().sum(2))
        last = distances.argmax(1)
    return chosen


class Edges(nn.Module):
    """The maximum over the neighbours of a network of each pair."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2 * inside, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.LeakyReLU(0.2, inplace=True),
        )

    def forward(self, centres: Tensor, features: Tensor, places: Tensor) -> Tensor:
        near = _gather(features, places)
        own = centres[:, :, None].expand_as(near)
        pairs = torch.cat([near - own, own], dim=3).permute(0, 3, 1, 2)
        result: Tensor = self.layers(pairs).amax(3).transpose(1, 2)
        return result


class Points(nn.Module):
    """Each layer finds neighbours among its own features; a last one is on fewer points."""

    def __init__(self, widths: Sequence[int], near: int) -> None:
        super().__init__()
        self.near = near
        self.edges = nn.ModuleList(Edges(w, v) for w, v in pairwise((3, *widths)))
        self.coarse = Edges(sum(widths), 256)
        self.head = nn.Sequential(
            nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, CLASSES)
        )

    def forward(self, points: Tensor) -> Tensor:
        features, each = points, []
        for edges in self.edges:
            features = edges(features, features, _neighbours(features, features, self.near))
            each.append(features)
        features = torch.cat(each, dim=2)
        few = _farthest(points, points.shape[1] // 8)[:, :, None]
        centres = _gather(points, few)[:, :, 0]
        places = _neighbours(centres, points, 2 * self.near)
        coarse = self.coarse(_gather(features, few)[:, :, 0], features, places)
        scores: Tensor = self.head(coarse.amax(1))
        return scores


def points(shapes: Shapes, widths: Sequence[int], near: int) -> None:
    """Clouds of points are classified, in floats. A shape is a number of clouds and of their
    points."""
    model = make(lambda: Points(widths, near))

    def given() -> Iterator[tuple[Tensor, Tensor]]:
        for batch, count in shapes:
            labels = torch.randint(CLASSES, (batch,))
            yield torch.rand(batch, count, 3).cuda(), labels.cuda()

    train(model, given(), lambda pair: F.cross_entropy(model(pair[0]), pair[1]))


class Messages(nn.Module):
    """Nodes receive the messages of their edges, weighted by a softmax over the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = _layers(2 * width, width, width)
        self.weight = nn.Linear(width, 1)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        pairs = [nodes.index_select(0, sources), nodes.index_select(0, targets)]
        messages = self.message(torch.cat(pairs, dim=1))
        logits = self.weight(messages)[:, 0]
        tops = torch.full((len(nodes),), -torch.inf, device=nodes.device)
        tops = tops.scatter_reduce(0, targets, logits.detach(), "amax")
        raised = (logits - tops[targets]).exp()
        totals = torch.zeros(len(nodes), device=nodes.device).scatter_add(0, targets, raised)
        shares = raised / totals[targets]
        received = torch.zeros_like(nodes).index_add(0, targets, messages * shares[:, None])
        return nodes + F.relu(self.norm(received))


class Network(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(Messages(width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, kinds: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(kinds)
        for layer in self.layers:
            hidden = layer(hidden, sources, targets)
        scores: Tensor = self.head(hidden)
        return scores


def graph(shapes: Shapes, degree: int, width: int, layers: int) -> None:
    """Nodes of random graphs are classified, in floats. A shape is a number of graphs and of their
    nodes. Equal edges count once, and some are dropped."""
    model = make(lambda: Network(width, layers))
    # The sizes of a step follow from the graph alone, and it is the same on each machine.
    drawn = torch.Generator().manual_seed(SEED)

    def given() -> Iterator[tuple[Tensor, ...]]:
        for graphs, nodes in shapes:
            total = graphs * nodes
            ends = torch.randint(nodes, (2, total * degree), generator=drawn)
            firsts = torch.arange(graphs).repeat_interleave(nodes * degree) * nodes
            sources, targets = (ends + firsts).cuda()
            apart = sources != targets
            edges = torch.unique(sources[apart] * total + targets[apart])
            kept = edges[torch.rand(len(edges), generator=drawn).cuda() < 0.9]
            known = torch.rand(total, generator=drawn).cuda() < 0.5
            labels = torch.randint(CLASSES, (total,)).cuda()
            kinds = torch.randint(1000, (total,)).cuda()
            yield kinds, kept // total, kept % total, known, labels

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        kinds, sources, targets, known, labels = batch
        return F.cross_entropy(model(kinds, sources, targets)[known], labels[known])

    train(model, given(), loss)


class Depth(nn.Module):
    """A transformer's layer for the tokens with the largest scores; the others pass it by."""

    def __init__(self, width: int, part: int) -> None:
        super().__init__()
        self.part = part
        self.router = nn.Linear(width, 1)
        self.guess = nn.Linear(width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def block(self, hidden: Tensor) -> Tensor:
        given = self.inputs(self.norms[0](hidden)).unflatten(2, (3, -1, 64)).transpose(1, 3)
        mixed = F.scaled_dot_product_attention(*given.unbind(2), is_causal=True)
        added = self.outputs(mixed.transpose(1, 2).flatten(2))
        changed: Tensor = added + self.wide(self.norms[1](hidden + added))
        return changed

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens, and the loss of a guess, without later tokens, of the choice."""
        if self.part == 1:
            return hidden + self.block(hidden), hidden.new_zeros(())
        scores = self.router(hidden)[:, :, 0]
        chosen = scores.topk(hidden.shape[1] // self.part, dim=1).indices.sort(1).values
        places = chosen[:, :, None].expand(-1, -1, hidden.shape[2])
        weights = scores.gather(1, chosen).sigmoid()[:, :, None]
        changed = self.block(hidden.gather(1, places)) * weights
        marks = torch.zeros_like(scores).scatter_(1, chosen, 1.0)
        guess = self.guess(hidden.detach())[:, :, 0]
        wrong = F.binary_cross_entropy_with_logits(guess, marks)
        return hidden.scatter_add(1, places, changed.to(hidden.dtype)), wrong


class Depths(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, part: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Depth(width, part if number % 2 else 1) for number in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(ids)
        wrong = torch.zeros((), device=ids.device)
        for layer in self.layers:
            hidden, more = layer(hidden)
            wrong = wrong + more
        return self.head(self.norm(hidden)), wrong


def depths(shapes: Shapes, vocabulary: int, width: int, layers: int, part: int) -> None:
    """A mixture of depths, in mixed precision: every second layer has one of `part` tokens."""
    model = make(lambda: Depths(vocabulary, width, layers, part))

    def loss(ids: Tensor) -> Tensor:
        scores, wrong = model(ids[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * wrong

    train(model, (tokens(*shape, vocabulary) for shape in shapes), loss, autocast=True)
