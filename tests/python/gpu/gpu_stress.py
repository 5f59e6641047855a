"""Threads that take, fill, lend, check and free memory on many streams, under a limit.

Arguments: the allocator, seconds, how uses on other streams are kept apart from reuse:

* `record`: `record_stream`; `forget`: that is left out, which is a mistake;
* `wait`: without `record_stream`; the memory's stream waits right before its own next request;
  `forget_wait`: that is left out, which is a mistake.

Every tensor is filled with a different number, and the device checks all of it, on any stream, with
only events between the streams. The limit is little above the live bytes, so pages move all the
time.
"""

import contextlib
import json
import random
import sys
import threading
import time

from benchmarks.harness.processes import use_allocator

allocator, seconds, uses = sys.argv[1], float(sys.argv[2]), sys.argv[3]
use_allocator(allocator, simulated=False)

import torch

import ferro_alloc

MIB = 1 << 20
THREADS, STREAMS = 8, 2
LIMIT = 4096 * MIB
LIVE = int(0.8 * LIMIT / THREADS)
"""What a thread keeps; a check takes 2.25 of its tensor's bytes more, for a truth value of each
number and then as many 64-bit numbers to add."""
SIZES = ((512, 4096), (4096, MIB), (MIB, 8 * MIB), (8 * MIB, 64 * MIB), (64 * MIB, 160 * MIB))
"""In bytes; each range is as likely as the others."""
LONGEST_SLEEP = 4_000_000
"""Cycles, 2 ms, that a stream idles before it looks at what it was lent. Without that the device is
done before the host asks for more."""


class Late:
    """Uses of a stream's freed memory on other streams; the stream waits for them before its next
    request."""

    def __init__(self):
        self.lock = threading.Lock()
        self.uses = []

    def wait(self, stream):
        for use in self.uses:
            if uses == "wait":
                stream.wait_event(use)
        self.uses.clear()


@contextlib.contextmanager
def requests_on(stream):
    """Allows requests on the stream, after its waits."""
    with late[stream].lock, torch.cuda.stream(stream):
        late[stream].wait(stream)
        yield


class Worker:
    def __init__(self, number):
        self.random = random.Random(number)
        self.tensors = []
        self.live = 0
        self.counts = {"allocated": 0, "transferred": 0, "checked": 0, "out_of_memory": 0}
        self.failure = None

    def run(self, deadline):
        try:
            while time.monotonic() < deadline:
                try:
                    self.step()
                except torch.OutOfMemoryError:
                    self.counts["out_of_memory"] += 1
                    self.drop_some(len(self.tensors) // 4 + 1)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise

    def step(self):
        if self.live > LIVE:
            self.drop(1)
        elif not self.tensors or self.random.random() < 0.5:
            self.take()
        elif self.random.random() < 0.5:
            self.check(*self.random.choice(self.tensors))
        else:
            self.lend()

    def take(self):
        elements = self.random.randint(*self.random.choice(SIZES)) // 4
        tag, home = self.random.getrandbits(30), self.random.choice(streams)
        with requests_on(home):
            tensor = torch.full((elements,), tag, dtype=torch.int32, device="cuda")
        self.tensors.append((tensor, tag, home))
        self.live += tensor.nbytes
        self.counts["allocated"] += 1

    def check(self, tensor, tag, stream):
        with requests_on(stream):
            wrong[stream] += (tensor != tag).sum()
        self.counts["checked"] += 1

    def lend(self):
        """Lends a tensor to another stream, which checks it after its other work; usually the
        tensor is freed at once."""
        place = self.random.randrange(len(self.tensors))
        tensor, tag, home = self.tensors[place]
        other = self.random.choice([stream for stream in streams if stream != home])
        other.wait_event(home.record_event())
        with torch.cuda.stream(other):
            torch.cuda._sleep(self.random.randrange(LONGEST_SLEEP))
        self.check(tensor, tag, other)
        if uses == "record":
            tensor.record_stream(other)
        self.counts["transferred"] += 1
        # Only a freed tensor needs a wait of its stream; kept ones are checked by that stream.
        with late[home].lock:
            late[home].uses.append(other.record_event())
            if self.random.random() < 0.8:
                self.live -= tensor.nbytes
                self.tensors.pop(place)
            del tensor

    def drop(self, count):
        for _ in range(min(count, len(self.tensors))):
            self.check(*self.pop())

    def drop_some(self, count):
        """Unchecked: a check takes memory, which all threads may lack at once."""
        for _ in range(min(count, len(self.tensors))):
            self.pop()

    def pop(self):
        found = self.tensors.pop(self.random.randrange(len(self.tensors)))
        self.live -= found[0].nbytes
        return found


torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
streams = [torch.cuda.Stream() for _ in range(THREADS * STREAMS)]
wrong = {stream: torch.zeros((), dtype=torch.int64, device="cuda") for stream in streams}
late = {stream: Late() for stream in streams}
torch.cuda.synchronize()
workers = [Worker(number) for number in range(THREADS)]
end = time.monotonic() + seconds
threads = [threading.Thread(target=worker.run, args=(end,)) for worker in workers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
reserved = torch.cuda.max_memory_reserved()
# The remaining tensors are checked without the limit, because running out of memory here would not
# be a finding.
torch.cuda.set_per_process_memory_fraction(1.0)
for worker in workers:
    worker.drop(len(worker.tensors))
torch.cuda.synchronize()
result = {
    "wrong": sum(int(count) for count in wrong.values()),
    "failures": [worker.failure for worker in workers if worker.failure],
    "counts": {name: sum(worker.counts[name] for worker in workers) for name in workers[0].counts},
    "reserved": reserved,
    "limit": LIMIT,
    "device": None,
}
if allocator == "ferro_alloc":
    device = ferro_alloc.status().devices[0]
    result["device"] = {
        "moved": device.pages_moved,
        "transferred": device.pages_transferred,
        "ladder": dict(device.ladder),
    }
print(json.dumps(result))
