"""Random programs whose memory sleeps and wakes at random moments.

    python sleep_seeded.py FIRST_SEED SEEDS STEPS

The programs use streams, threads, tags, MemPools and graphs. Every byte is compared when its tensor
is freed, after each wake and at the end. The last line is JSON: the numbers of sleeps, wakes and
compared tensors.
"""

import json
import random
import sys
import threading

import torch

import ferro_alloc
from ferro_alloc import _C

TAGS = ("weights", "cache", "")
SIZES = (1, 300, 5_000, 200_000, 600_000, 1_500_000, 6_000_000)  # numbers of int32

counts = {"sleeps": 0, "wakes": 0, "compared": 0, "replays": 0, "refused": 0}
ferro_alloc.install()


class Program:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.pool = torch.cuda.MemPool()
        self.tensors = []  # (tensor, value, tag, stream)
        self.graphs = []  # (graph, input, result)
        self.asleep = {}  # tag: whether contents are kept
        self.value = 0

    def awake(self, tag):
        return tag not in self.asleep

    def compare(self, tensor, value):
        counts["compared"] += 1
        assert bool((tensor == value).all()), (tensor.shape, value, tensor.unique()[:5])

    def allocate(self):
        tag = self.random.choice(TAGS)
        stream = self.random.choice(self.streams)
        self.value += 1
        with torch.cuda.stream(stream):
            with ferro_alloc.tag(tag) if tag else ferro_alloc.tag("rest"):
                if self.random.random() < 0.2:
                    with torch.cuda.use_mem_pool(self.pool):
                        tensor = torch.empty(
                            self.random.choice(SIZES), dtype=torch.int32, device="cuda"
                        )
                else:
                    tensor = torch.empty(
                        self.random.choice(SIZES), dtype=torch.int32, device="cuda"
                    )
            tensor.fill_(self.value)
        self.tensors.append([tensor, self.value, tag or "rest", stream])

    def free(self):
        if not self.tensors:
            return
        entry = self.tensors.pop(self.random.randrange(len(self.tensors)))
        tensor, value, tag, stream = entry
        if self.awake(tag):
            with torch.cuda.stream(stream):
                self.compare(tensor, value)
        if self.random.random() < 0.3:
            thread = threading.Thread(target=entry.clear)
            del tensor
            thread.start()
            thread.join()

    def write(self):
        for entry in self.random.sample(self.tensors, min(3, len(self.tensors))):
            tensor, value, tag, stream = entry
            if self.awake(tag):
                with torch.cuda.stream(stream):
                    tensor.add_(1)
                entry[1] = value + 1

    def capture(self):
        if self.asleep or len(self.graphs) == 3:
            return
        torch.cuda.synchronize()
        with ferro_alloc.tag("graph"):
            source = torch.zeros(300_000, dtype=torch.int32, device="cuda")
            graph = torch.cuda.CUDAGraph()
            # The graph copies, because the simulated GPU computes nothing in graphs.
            with torch.cuda.graph(graph):
                scratch = source.clone()
                result = scratch.clone()
                del scratch
        self.graphs.append((graph, source, result))

    def replay(self):
        if not self.graphs:
            return
        graph, source, result = self.random.choice(self.graphs)
        if "graph" in self.asleep:
            try:
                graph.replay()
            except ferro_alloc.FerroError:
                counts["refused"] += 1
            return
        self.value += 1
        source.fill_(self.value)
        graph.replay()
        counts["replays"] += 1
        self.compare(result, self.value)

    def sleep(self):
        if self.random.random() < 0.4:
            names, given = {*TAGS[:2], "rest", "graph"}, None
        else:
            names = set(self.random.sample((*TAGS[:2], "rest"), self.random.randrange(1, 3)))
            given = sorted(names)
        # Where it is not asleep already, and its contents are not those of another request.
        keep = "graph" in names or self.random.random() < 0.8
        ferro_alloc.sleep(given, keep="host" if keep else "nothing")
        counts["sleeps"] += 1
        for name in names:
            self.asleep.setdefault(name, True)
            if not keep:
                self.asleep[name] = False

    def wake(self):
        names = None
        if self.random.random() < 0.4 and self.asleep:
            names = [self.random.choice(sorted(self.asleep))]
        ferro_alloc.wake(names)
        counts["wakes"] += 1
        _C.check_invariants(0)
        for name in sorted(self.asleep) if names is None else names:
            kept = self.asleep.pop(name)
            for entry in self.tensors:
                tensor, value, tag, stream = entry
                if tag == name:
                    with torch.cuda.stream(stream):
                        if kept:
                            self.compare(tensor, value)
                        else:
                            tensor.fill_(value)

    def step(self):
        steps = {
            self.allocate: 8,
            self.free: 6,
            self.write: 3,
            self.capture: 0.5,
            self.replay: 1.5,
            self.sleep: 1.5,
            self.wake: 2,
            torch.cuda.empty_cache: 0.5,
        }
        self.random.choices(list(steps), list(steps.values()))[0]()

    def end(self):
        torch.cuda.synchronize()
        ferro_alloc.wake()
        for tensor, value, tag, _ in self.tensors:
            if self.asleep.get(tag, True):
                self.compare(tensor, value)
        for graph, source, result in self.graphs:
            source.fill_(5)
            graph.replay()
            self.compare(result, 5)
        _C.check_invariants(0)


def run(seed, steps):
    program = Program(seed)
    for number in range(steps):
        try:
            program.step()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {number}, asleep {program.asleep}")
            raise
    program.end()


first, seeds, steps = (int(word) for word in sys.argv[1:])
torch.zeros(1, device="cuda")
for seed in range(first, first + seeds):
    run(seed, steps)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    _C.check_invariants(0)
    asleep = ferro_alloc.asleep()
    assert asleep.device_bytes == asleep.content_bytes == 0, asleep
print(json.dumps(counts))
