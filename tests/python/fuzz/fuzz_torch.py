"""Random calls of the whole allocator interface of PyTorch programs, compared with a naive model.

    fuzz_torch.py --seed 7 --steps 100000

The simulated GPU does all work at once, so the sums are exact. Ends with a line of JSON; the first
difference from the model ends it with an error that names the seed and the step.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

arguments = argparse.ArgumentParser()
arguments.add_argument("--seed", type=int, default=0)
arguments.add_argument("--steps", type=int, default=10_000)
arguments.add_argument("--seconds", type=float, default=1e9, help="ends earlier after so long")
arguments.add_argument("--memory", default="512MiB")
arguments.add_argument("--check-every", type=int, default=50)
arguments.add_argument("--without", nargs="*", default=[], help="names of operations")
options = arguments.parse_args()

from ferro_alloc import sim

sim.activate(memory=options.memory)

import torch

import ferro_alloc
from ferro_alloc import _C
from fuzz_model import Block, Driver, Model

torch.set_num_threads(1)
KIB, MIB = 1 << 10, 1 << 20
CONFIG = ferro_alloc.Config()
ferro_alloc.install(CONFIG)
draw = random.Random(options.seed)
driver = Driver()


class Graph:
    """A capture of memsets and a copy. On each replay its result holds `tag` again."""

    def __init__(self, pool, stream, side):
        self.graph = torch.cuda.CUDAGraph()
        self.tag, self.replayed = draw.randrange(256), False
        size = small_size()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            between = torch.empty(size, dtype=torch.uint8, device="cuda")
            driver.write(between.data_ptr(), size, self.tag, stream.cuda_stream)
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                self.result = torch.empty(size, dtype=torch.uint8, device="cuda")
                self.result.copy_(between)
            between.record_stream(side)
            del between
            extra = torch.empty(size, dtype=torch.uint8, device="cuda")
            driver.write(extra.data_ptr(), size, 255 - self.tag, stream.cuda_stream)
            stream.wait_stream(side)
            del extra


def small_size():
    return draw.choice([1, 511, 512, 513, draw.randint(1, 4 * KIB), draw.randint(1, 300 * KIB)])


def any_size():
    kind = draw.random()
    if kind < 0.7:
        return small_size()
    if kind < 0.8:
        return draw.choice([1, 2, 10, 20]) * MIB + draw.choice([-512, -1, 0, 1, 512])
    return draw.randint(256 * KIB, draw.choice([2, 2, 12, 40]) * MIB)


class Fuzz:
    def __init__(self):
        self.done = Counter()
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
        self.capturing, self.side = torch.cuda.Stream(), torch.cuda.Stream()
        # Keeps the memory that a generator holds while any graph exists, so that sums do not
        # change.
        self.steady = Graph(None, self.capturing, self.side)
        self.pools, self.own_pools, self.graphs, self.handles = [], [], [], []
        self.pool_is_ours: dict[tuple[int, int], bool] = {}
        self.serves, self.caches, self.recording = True, True, False
        runtime = ctypes.CDLL("libcudart.so.13")
        self.own = self.make_own_allocator(runtime)
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")
        torch.cuda.memory_stats()
        self.model = Model(driver)
        self.total = torch.cuda.mem_get_info()[1]
        operations = {
            self.allocate: 40, self.free: 38, self.allocate_raw: 4, self.delete_raw: 4,
            self.record_stream: 8, self.share: 1, self.keep_a_view: 3, self.resize: 4, self.look: 6,
            self.write_again: 4, self.make_pool: 1, self.drop_pool: 0.8,
            self.allocate_in_pool: 8, self.capture: 1.2, self.fail_a_capture: 0.3, self.replay: 4,
            self.drop_graph: 1.1, self.checkpoint: 0.3, self.snapshot: 0.6, self.history: 0.4,
            self.change_fraction: 0.4, self.empty_cache: 0.8, self.reset: 0.3,
            self.synchronize: 1, self.ask_too_much: 0.4, self.delete_wrongly: 0.6,
            self.toggle_caching: 0.2, self.toggle_install: 0.2, self.thread: 0.3,
            self.drop_many: 0.2, self.annotate: 0.2,
        }  # fmt: skip
        self.operations = {o: w for o, w in operations.items() if o.__name__ not in options.without}

    def make_own_allocator(self, runtime):
        """cudaMalloc and cudaFree as the two functions that a MemPool calls."""

        def allocate(size, device, stream):
            pointer = ctypes.c_void_p()
            if runtime.cudaMalloc(ctypes.byref(pointer), size) == 0:
                return pointer.value
            runtime.cudaGetLastError()  # otherwise the next call of torch reports it
            return None

        def free(pointer, size, device, stream):
            runtime.cudaFree(ctypes.c_void_p(pointer))

        word, pointer = ctypes.c_size_t, ctypes.c_void_p
        runtime.cudaMalloc.argtypes = (ctypes.POINTER(pointer), word)
        self.functions = (
            ctypes.CFUNCTYPE(pointer, word, ctypes.c_int, pointer)(allocate),
            ctypes.CFUNCTYPE(None, pointer, word, ctypes.c_int, pointer)(free),
        )
        return torch._C._cuda_customAllocator(
            *(ctypes.cast(function, pointer).value for function in self.functions)
        )

    # ---- operations

    def made(self, tensor, **facts):
        facts.setdefault("native", not self.serves)
        exact = facts.pop("exact", True) and self.serves
        block = Block(
            tensor.data_ptr(), tensor.numel(), draw.randrange(256), tensor, exact=exact,
            counted=self.caches, **facts,
        )  # fmt: skip
        return self.model.add(block)

    def take(self, size):
        """None when there is no room."""
        try:
            return torch.empty(size, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:
            # Without the cache the runtime refuses.
            said = "Tried to allocate" if self.caches else "out of memory"
            assert said in str(error), error
            self.done["out of memory"] += 1
        return None

    def notice_frees(self):
        """Native looks for complete frees when it allocates."""
        if self.caches and not self.serves:
            self.take(1)

    def allocate(self):
        if len(self.model.blocks) > 250:
            self.free()
            return
        with torch.cuda.stream(draw.choice(self.streams)):
            tensor = self.take(any_size())
        if tensor is not None:
            self.made(tensor)

    def pick(self, allowed=lambda block: True):
        blocks = [block for block in self.model.blocks if allowed(block)]
        return draw.choice(blocks) if blocks else None

    def drop(self, block):
        self.model.remove(block)
        block.tensor = None
        block.keeps.clear()

    def free(self):
        block = self.pick(lambda b: b.tensor is not None and not b.keeps)
        if block:
            self.drop(block)

    def drop_many(self):
        for _ in range(draw.randint(1, 200)):
            self.free()

    def allocate_raw(self):
        size = any_size()
        try:
            address = torch.cuda.caching_allocator_alloc(size, stream=draw.choice(self.streams))
        except RuntimeError as error:
            assert "out of memory" in str(error), error
            return
        exact = self.serves
        self.model.add(
            Block(
                address, size, draw.randrange(256), None, exact=exact, counted=self.caches,
                native=not self.serves,
            )
        )  # fmt: skip

    def delete_raw(self):
        block = self.pick(lambda b: b.tensor is None)
        if block:
            self.model.remove(block)
            torch.cuda.caching_allocator_delete(block.address)

    def delete_wrongly(self):
        block = self.pick(lambda b: b.size > 1024)
        wrong = [0x7000, block.address + 512 if block else 0x9000]
        for address in wrong:
            try:
                torch.cuda.caching_allocator_delete(address)
            except RuntimeError as error:
                assert "invalid device pointer" in str(error), error
            else:
                raise AssertionError(f"{address:x} was freed")

    def record_stream(self):
        block = self.pick(lambda b: b.tensor is not None)
        if block:
            block.tensor.record_stream(draw.choice(self.streams))
            block.recorded = True

    def share(self):
        """Shares with a process that never opens it; `record_stream` then does nothing for it."""
        block = self.pick(lambda b: b.tensor is not None and b.counted and b.writable)
        if block:
            try:
                shared = block.tensor.untyped_storage()._share_cuda_()
            except torch.OutOfMemoryError:  # a large block is copied to one handle
                self.done["no room to share"] += 1
                return
            torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])

    def keep_a_view(self):
        block = self.pick(lambda b: b.tensor is not None and b.size > 1)
        if block:
            middle = block.tensor.numel() // 2
            block.tensor = block.tensor[:middle] if draw.random() < 0.5 else block.tensor[middle:]

    def resize(self):
        block = self.pick(lambda b: b.tensor is not None and not b.keeps and b.writable)
        if not block:
            return
        tensor, size = block.tensor, any_size()
        storage = tensor.untyped_storage()
        self.model.check_contents(block)
        try:
            storage.resize_(size)
        except RuntimeError as error:
            assert "out of memory" in str(error), error
            assert storage.nbytes() == block.size
            return
        self.model.forget(block)
        block.tensor = None
        whole = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
        del tensor
        head = min(block.size, size, 4096)
        assert driver.read(whole.data_ptr(), head) == bytes([block.tag]) * head
        self.made(whole)

    def look(self):
        block = self.pick()
        if block:
            self.model.check_contents(block)

    def write_again(self):
        block = self.pick(lambda b: b.writable)
        if block:
            block.tag = draw.randrange(256)
            self.model.write(block)

    def make_pool(self):
        if len(self.pools) >= 4 or not self.caches:
            return
        kind = draw.choice(["plain", "plain", "use_on_oom", "no_split", "own"])
        if kind == "own":
            pool = torch.cuda.MemPool(self.own)
        else:
            pool = torch.cuda.MemPool(**({} if kind == "plain" else {kind: True}))
        self.pools.append((pool, kind))

    def drop_pool(self):
        if self.pools:
            del self.pools[draw.randrange(len(self.pools))]

    def allocate_in_pool(self):
        if not self.pools or not self.caches or len(self.model.blocks) > 250:
            return
        pool, _ = draw.choice(self.pools)
        with torch.cuda.stream(draw.choice(self.streams)), torch.cuda.use_mem_pool(pool):
            tensor = self.take(any_size())
        if tensor is not None:
            # A pool stays with the allocator that created it, even if another one serves now.
            self.made(tensor, exact=False, native=True)

    def capture(self):
        if len(self.graphs) >= 6 or not self.caches:
            return
        pool = draw.choice([None, *self.handles])
        if draw.random() < 0.3:
            self.handles = [*self.handles[-2:], torch.cuda.graph_pool_handle()]
        ours = pool is None or self.pool_is_ours.setdefault(pool, self.serves)
        if not ours:
            # The allocator of the pool notices what the capture frees when it allocates again.
            self.model.slack += MIB
        try:
            graph = Graph(pool, self.capturing, self.side)
        except torch.OutOfMemoryError:
            self.recover()
            self.drop_unheld_handles()
            return
        self.graphs.append(graph)
        graph.block = self.made(graph.result, exact=False, writable=False, native=True)
        graph.block.keeps.append(graph)

    def drop_unheld_handles(self):
        """Their pool is unheld, so the current allocator would create it again."""
        held = {tuple(graph.graph.pool()) for graph in self.graphs}
        self.handles = [h for h in self.handles if h in held or h not in self.pool_is_ours]

    def recover(self):
        torch.cuda.set_stream(torch.cuda.default_stream())
        gc.collect()

    def fail_a_capture(self):
        if not self.caches:
            return
        graph = torch.cuda.CUDAGraph()
        kind = draw.choice(["exception", "memory"])
        try:
            with torch.cuda.graph(graph, stream=self.capturing):
                inner = torch.empty(small_size(), dtype=torch.uint8, device="cuda")
                driver.write(inner.data_ptr(), 1, 1, self.capturing.cuda_stream)
                if kind == "memory":
                    torch.empty(2 * self.total, dtype=torch.uint8, device="cuda")
                raise KeyError("the program's own")
        except (KeyError, torch.OutOfMemoryError):
            self.done["failed captures"] += 1
        inner = None
        self.recover()

    def replay(self):
        if self.graphs:
            graph = draw.choice(self.graphs)
            # Graphs of one pool may share memory: the result is valid until another one replays.
            graph.graph.replay()
            torch.cuda.synchronize()
            length = min(graph.result.numel(), 4096)
            found = driver.read(graph.result.data_ptr(), length)
            assert found == bytes([graph.tag]) * length, ("a replay gave", found[:8], graph.tag)

    def drop_graph(self):
        if self.graphs:
            graph = self.graphs.pop(draw.randrange(len(self.graphs)))
            if draw.random() < 0.5:
                graph.graph.reset()
            graph.result = None
            self.drop(graph.block)
            self.drop_unheld_handles()

    def checkpoint(self):
        """Does as cudagraph trees: captures, takes a checkpoint, captures more, restores it."""
        if not self.serves or not self.caches:
            return
        handle = torch.cuda.graph_pool_handle()
        try:
            first = Graph(handle, self.capturing, self.side)
            live = {first.result.data_ptr()}
            assert torch._C._cuda_checkPoolLiveAllocations(0, handle, live)
            state = torch._C._cuda_getCheckpointState(0, handle)
            second = Graph(handle, self.capturing, self.side)
        except torch.OutOfMemoryError:
            self.recover()
            return
        torch._C._free_And_Remove_DeleterFn(second.result.untyped_storage()._cdata)
        torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        assert torch._C._cuda_checkPoolLiveAllocations(0, handle, live)
        first.graph.replay()
        assert driver.read(first.result.data_ptr(), 1) == bytes([first.tag])

    def snapshot(self):
        self.model.check_snapshot()

    def history(self):
        self.recording = not self.recording
        if self.recording:
            torch.cuda.memory._record_memory_history(
                draw.choice(["all", "state"]),
                stacks="python",
                max_entries=draw.choice([1, 10, 1000]),
            )
        else:
            traces = torch.cuda.memory._snapshot()["device_traces"]
            assert len(traces) == 1
            torch.cuda.memory._record_memory_history(None)

    def annotate(self):
        with torch.profiler.record_function("fuzz"):
            torch.cuda.memory._snapshot()

    def change_fraction(self):
        torch.cuda.set_per_process_memory_fraction(draw.choice([0.2, 0.5, 0.9, 1.0, 1.0]))

    def empty_cache(self):
        torch.cuda.empty_cache()
        self.model.slack = 0

    def reset(self):
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    def synchronize(self):
        torch.cuda.synchronize()

    def ask_too_much(self):
        before = len(self.model.blocks)
        assert self.take(2 * self.total) is None
        assert before == len(self.model.blocks)

    def toggle_caching(self):
        self.caches = not self.caches
        torch.cuda.caching_allocator_enable(self.caches)

    def toggle_install(self):
        if self.serves:
            ferro_alloc.uninstall()
        else:
            ferro_alloc.install(CONFIG)
        self.serves = not self.serves

    def thread(self):
        """The thread allocates on its own stream and ends; its tensors stay alive."""
        made, failed = [], []

        def work():
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for size in sizes:
                        with contextlib.suppress(torch.OutOfMemoryError, torch.AcceleratorError):
                            made.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except BaseException as error:
                failed.append(error)

        sizes = [small_size() for _ in range(draw.randint(1, 8))]
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failed, failed
        for tensor in made:
            self.made(tensor)

    # ---- the run

    def run(self):
        names, weights = list(self.operations), list(self.operations.values())
        started = time.monotonic()
        step = 0
        for step in range(1, options.steps + 1):
            (operation,) = draw.choices(names, weights)
            try:
                operation()
                self.done[operation.__name__] += 1
                self.notice_frees()
                self.model.check_sums()
                if step % options.check_every == 0:
                    _C.check_invariants(0)
            except BaseException:
                where = f"seed {options.seed}, step {step}"
                where += f", serves {self.serves}, caches {self.caches}"
                print(f"{where}: {operation.__name__}", file=sys.stderr)
                traceback.print_exc()
                return step, False
            if time.monotonic() - started > options.seconds:
                break
        return step, True

    def end(self):
        """Destroys everything; all memory must be released."""
        while self.graphs:
            self.drop_graph()
        for block in list(self.model.blocks):
            if block.tensor is None:
                self.model.remove(block)
                torch.cuda.caching_allocator_delete(block.address)
            else:
                self.drop(block)
        self.pools.clear()
        self.steady = None
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _C.check_invariants(0)
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


fuzz = Fuzz()
steps, good = fuzz.run()
result = {"steps": steps, "good": good, "seed": options.seed, "done": dict(fuzz.done)}
if good:
    result["allocated_at_end"], result["reserved_at_end"] = fuzz.end()
print(json.dumps(result), flush=True)
if not good:
    # Live tensors would call the pools' own allocator during Python's finalization.
    os._exit(1)
