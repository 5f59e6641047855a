"""Memory used on several streams by slow kernels, under the given allocator."""

import json
import sys
import threading

from benchmarks.harness.processes import use_allocator

allocator = sys.argv[1]
use_allocator(allocator, simulated=False)

import torch
from torch import nn

SLOW = 100_000_000  # cycles: some 50 ms
SIZES = (2_000, 700_000, 30 << 20, 300 << 20)
reused_early = 0


def bytes_of(value, size):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def use_late(size, record, streams):
    """Reads a block on other streams after slow kernels, and frees it before they have begun.

    Meanwhile the main stream allocates blocks of the same size and overwrites them. Returns whether
    one of these was the freed block, and whether the streams read the right bytes.
    """
    block, junk = bytes_of(1, size), bytes_of(2, size)
    copies = [torch.empty_like(block) for _ in streams]
    torch.cuda.synchronize()
    for stream, copy in zip(streams, copies, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLOW)
            copy.copy_(block)
        if record:
            block.record_stream(stream)
    address = block.data_ptr()
    del block
    taken = []
    for _ in range(3):
        taken.append(torch.empty_like(junk))
        taken[-1].copy_(junk)
    reused = any(tensor.data_ptr() == address for tensor in taken)
    torch.cuda.synchronize()
    return reused, all(bool((copy == 1).all()) for copy in copies)


def record_stream_keeps_memory():
    global reused_early
    streams = [torch.cuda.Stream() for _ in range(3)]
    # Kernels are loaded at their first use, which waits for the device.
    use_late(SIZES[0], record=True, streams=streams)
    for size in SIZES:
        for used in (streams[:1], streams):
            reused, right = use_late(size, record=True, streams=used)
            # ferro_alloc may hand memory out earlier, to a stream that waits for the others.
            assert not reused or allocator != "native", f"{size} bytes were handed out while used"
            assert right, f"{size} bytes were overwritten while {len(used)} streams used them"
        # The test would notice: without the record the block is free at once.
        reused_early += use_late(size, record=False, streams=streams[:1])[0]


def memory_comes_back_when_streams_are_done():
    size = 256 << 20
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    for _ in range(10):
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        block.record_stream(stream)
        with torch.cuda.stream(stream):
            block.zero_()
        del block
        stream.synchronize()
    grown = torch.cuda.max_memory_reserved() - before
    assert grown <= 2 * size, f"ten blocks in turn took the memory of {grown / size:.1f}"


def cross_stream_pipeline():
    """A producer and a consumer stream that exchange memory with events and `record_stream`."""
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    expected = 0
    torch.cuda.synchronize()
    for step in range(200):
        size = int(torch.randint(1, 2_000_000, (1,), generator=generator))
        with torch.cuda.stream(producer):
            value = torch.full((size,), step % 100, dtype=torch.uint8, device="cuda")
            ready = producer.record_event()
        consumer.wait_event(ready)
        with torch.cuda.stream(consumer):
            if step % 20 == 0:
                torch.cuda._sleep(SLOW // 10)
            total += value.sum(dtype=torch.int64)
        value.record_stream(consumer)
        del value
        expected += size * (step % 100)
    torch.cuda.synchronize()
    assert total.item() == expected, (total.item(), expected)


def make_model():
    torch.manual_seed(2)
    layers = []
    for _ in range(4):
        layers += [nn.Linear(512, 512), nn.Tanh()]
    return nn.Sequential(*layers).cuda()


def train(seed):
    """Losses and weights of a small model, forward and backward, on this thread's own stream."""
    model = models[seed]
    generator = torch.Generator().manual_seed(seed)
    losses = []
    with torch.cuda.stream(torch.cuda.Stream()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(40):
            rows = int(torch.randint(1, 3_000, (1,), generator=generator))
            x = torch.randn(rows, 512, generator=generator).cuda()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    torch.cuda.synchronize()
    return losses


def autograd_from_several_threads():
    global models
    alone, together = {}, {}
    for results, threaded in ((alone, False), (together, True)):
        models = {seed: make_model() for seed in range(6)}
        torch.cuda.synchronize()

        def work(seed, results=results):
            results[seed] = train(seed)

        if threaded:
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for seed in range(6):
                work(seed)
    assert set(together) == set(alone), "a thread failed"
    assert together == alone, "threads at once computed something else than one after the other"
    return [loss.hex() for seed in range(6) for loss in alone[seed]]


def tensors_freed_by_other_threads():
    """Each block is made on one thread and dropped on another, which finds its own bytes in it."""
    wrong = []

    def drop(items):
        for value, tensor in items:
            if not bool((tensor == value).all()):
                wrong.append(value)
        items.clear()

    for turn in range(20):
        items = [(v, bytes_of(v, 1_000 * (v + 1) * (turn + 1))) for v in range(8)]
        torch.cuda.synchronize()
        thread = threading.Thread(target=drop, args=(items,))
        del items
        thread.start()
        thread.join()
    assert not wrong, f"{len(wrong)} blocks held other bytes than were put there"


record_stream_keeps_memory()
memory_comes_back_when_streams_are_done()
cross_stream_pipeline()
losses = autograd_from_several_threads()
tensors_freed_by_other_threads()
torch.cuda.synchronize()
if allocator == "ferro_alloc":
    from ferro_alloc import _C

    _C.check_invariants(0)
print(json.dumps({"losses": losses, "reused_without_record": reused_early}))
