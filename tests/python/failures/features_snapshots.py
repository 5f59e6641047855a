"""Snapshots of several devices with pools and graphs, and PyTorch's own viewer on them."""

import pickle
import re
import tempfile
from collections import Counter
from pathlib import Path

from tests.python.feature_checks import KIB, MIB, check, finish, take

import torch
from torch.cuda import _memory_viz as viewer

COUNT = torch.cuda.device_count()
record = torch.cuda.memory._record_memory_history


def undrawn(text):
    """Replaces the viewer's function, which downloads a script for drawing."""
    return text


class Scene:
    """On each device: blocks of three sizes, one freed, one waiting, a pool, and a graph."""

    def __init__(self):
        self.kept, self.pools, self.graphs = [], [], []
        for index in range(COUNT):
            with torch.cuda.device(index):
                self.fill(index)
        self.snapshot = torch.cuda.memory._snapshot()

    def fill(self, index):
        source = take((index + 1) * 256 * KIB)
        self.kept += [source, take(700), take(5 * MIB)]
        take(3 * MIB)
        pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        with torch.cuda.use_mem_pool(pool):
            self.kept += [take(2 * MIB), take(100 * KIB)]
        # The default stream of torch.cuda.graph belongs to the first device that captured.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            between = source.clone()
            self.kept.append(between.clone())
            del between
        self.pools.append(pool)
        self.graphs.append(graph)

    def active(self):
        """The requested sizes of each device, and whether they are in a pool."""
        found = [Counter() for _ in range(COUNT)]
        for segment in self.snapshot["segments"]:
            private = tuple(segment["segment_pool_id"]) != (0, 0)
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    found[segment["device"]][block["requested_size"], private] += 1
        return [sorted(counter.items()) for counter in found]


def plot_data(page):
    """The data for the script in a page of the viewer."""
    return re.findall(r'"(?:viz|type|kind)":\s*"?([\w ]+)', page), len(page) > 1000


@check
def blocks_of_all_devices():
    return Scene().active()


@check
def pools_have_the_same_shape():
    scene = Scene()
    owners = [
        {tuple(s["segment_pool_id"]) for s in scene.snapshot["segments"] if s["device"] == index}
        for index in range(COUNT)
    ]
    for index, pool in enumerate(scene.pools):
        assert tuple(pool.id) in owners[index]
        assert tuple(scene.graphs[index].pool()) in owners[index]
        for other in range(COUNT):
            assert (tuple(pool.id) in owners[other]) == (other == index)
    return [len(found) for found in owners]


@check
def keys_at_every_level():
    record("all")
    snapshot = Scene().snapshot
    record(None)
    segments = snapshot["segments"]
    traces = [entry for trace in snapshot["device_traces"] for entry in trace]
    levels = {
        "snapshot": [snapshot],
        "segments": segments,
        "blocks": [block for segment in segments for block in segment["blocks"]],
        "frames": [frame for entry in traces for frame in entry.get("frames", [])],
        "settings": [snapshot["allocator_settings"]],
    }
    kinds = {
        name: sorted({(key, type(entry[key]).__name__) for entry in entries for key in entry})
        for name, entries in levels.items()
    }  # fmt: skip
    common = set.intersection(*(set(entry) for entry in traces))
    return kinds, sorted(common), len(snapshot["device_traces"])


@check
def histories_of_each_device():
    record("all")
    scene = Scene()
    record(None)
    assert all(
        entry["device_free" if entry["action"] == "oom" else "size"] >= 0
        for trace in scene.snapshot["device_traces"]
        for entry in trace
    )
    return [
        [
            (entry["action"], entry["size"])
            for entry in trace
            if entry["action"] in ("alloc", "free_requested")
        ]
        for trace in scene.snapshot["device_traces"]
    ]


@check
def the_viewer_opens_it():
    record("all")
    scene = Scene()
    record(None)
    snapshot = pickle.loads(pickle.dumps(scene.snapshot))
    found = {
        "trace_plot": plot_data(viewer.trace_plot(snapshot)),
        "segment_plot": plot_data(viewer.segment_plot(snapshot)),
    }
    texts = [
        viewer.segsum(snapshot),
        viewer.trace(snapshot),
        viewer.segments(snapshot, format_flamegraph=undrawn),
        viewer.memory(snapshot, format_flamegraph=undrawn),
    ]
    assert all(texts)
    # Every live block is a line of the text that a flame graph is drawn from.
    return found, "active_allocated" in texts[3]


@check
def two_are_compared():
    before = Scene()
    after = Scene()
    text = viewer.compare(
        before.snapshot["segments"], after.snapshot["segments"], format_flamegraph=undrawn
    )
    return bool(text)


@check
def a_file_of_it():
    record("all")
    scene = Scene()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        again = pickle.loads(path.read_bytes())
    record(None)
    assert sorted(again) == sorted(scene.snapshot)
    assert len(again["segments"]) == len(scene.snapshot["segments"])
    return len(again["device_traces"])


@check
def segments_are_in_order_and_tiled():
    scene = Scene()
    places = [(segment["device"], segment["address"]) for segment in scene.snapshot["segments"]]
    for segment in scene.snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
    held = Counter()
    for segment in scene.snapshot["segments"]:
        held[segment["device"]] += segment["total_size"]
    assert held == {index: torch.cuda.memory_reserved(index) for index in range(COUNT)}
    return [device for device, _ in places] == sorted(device for device, _ in places)


def sums_that_differ():
    """Which sums of segments by type, computed as in PyTorch's tests, differ from the
    statistics."""
    wrong = []
    for index in range(COUNT):
        sums = Counter()
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != index:
                continue
            kinds = ("all", segment["segment_type"] + "_pool")
            blocks = [block["state"] for block in segment["blocks"]]
            for kind in kinds:
                for name, size in (
                    ("allocated_bytes", segment["allocated_size"]),
                    ("reserved_bytes", segment["total_size"]),
                    ("active_bytes", segment["active_size"]),
                    ("requested_bytes", segment["requested_size"]),
                    ("allocation", blocks.count("active_allocated")),
                    ("active", len(blocks) - blocks.count("inactive")),
                    ("segment", 0 if segment["is_expandable"] else 1),
                ):
                    sums[f"{name}.{kind}.current"] += size
        statistics = torch.cuda.memory_stats(index)
        wrong += [
            (name, sums[name], statistics[name]) for name in sums if sums[name] != statistics[name]
        ]
    return wrong


@check
def sums_by_type_are_the_statistics():
    scene, seen = Scene(), [sums_that_differ()]
    for step in (1, 2, 3):
        del scene.kept[:: step + 1]
        scene.kept += [take(size * KIB) for size in (1, 600, 1024, 1025, 3000)]
        seen.append(sums_that_differ())
    torch.cuda.reset_peak_memory_stats()
    for kind in ("small_pool", "large_pool", "all"):
        found = torch.cuda.memory_stats()
        at = f"reserved_bytes.{kind}."
        seen.append(found[at + "peak"] == found[at + "current"])
        seen.append(found[at + "allocated"] - found[at + "freed"] == found[at + "current"])
    return seen


def states_with_frames():
    segments = torch.cuda.memory._snapshot()["segments"]
    return sorted({block["state"] for s in segments for block in s["blocks"] if block["frames"]})


@check
def freed_blocks_keep_no_frames():
    """At each level. A block that waits for a stream keeps its frames."""
    seen = []
    for context in ("state", "alloc", "all"):
        record(context=context)
        kept, side = take(5 * MIB), torch.cuda.Stream()
        take(7 * MIB)
        seen.append([kept.numel(), states_with_frames()])
        kept.record_stream(side)
        del kept
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        seen.append(states_with_frames())
        record(None)
    return seen


finish()
