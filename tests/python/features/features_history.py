"""Histories, their levels, observers, and the tools that read them."""

import pickle
import re
import tempfile
from collections import Counter
from pathlib import Path

from tests.python.feature_checks import ALLOCATOR, KIB, MIB, check, error_of, finish, take

import torch
from torch.cuda import _memory_viz

record = torch.cuda.memory._record_memory_history
snapshot = torch.cuda.memory._snapshot


def stop():
    record(None)


def segment_actions(entry):
    return entry["action"].startswith("segment")


def actions(entries):
    """The actions on blocks, in order; those on segments depend on the layout."""
    return [
        (entry["action"], entry["size"])
        for entry in entries
        if not segment_actions(entry) and entry["action"] != "snapshot"
    ]


def functions(frames):
    return {frame["name"] for frame in frames}


def allocate_here(size):
    return take(size)


def undrawn(text):
    """Replaces the viewer's function, which downloads a script for drawing."""
    return text


def release_here(kept):
    kept.clear()


def block_of(tensor, state="active_allocated"):
    for segment in snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["address"] == tensor.data_ptr():
                assert block["state"] == state
                return block
    raise AssertionError("no block starts at the tensor")


@check
def off_by_default():
    return [len(trace) for trace in snapshot()["device_traces"]], torch._C._cuda_isHistoryEnabled()


@check
def everything_in_order():
    record("all")
    enabled = torch._C._cuda_isHistoryEnabled()
    kept = [take(3 * MIB), take(1000)]
    side = torch.cuda.Stream()
    kept[0].record_stream(side)
    del kept[0]
    torch.cuda.synchronize()
    kept.append(take(5000))
    del kept
    trace = snapshot()["device_traces"][0]
    stop()
    # One allocator notices a completed free at the next allocation, the other at the next miss.
    done = actions(trace)
    done.remove(("free_completed", 3 * MIB))
    return enabled, torch._C._cuda_isHistoryEnabled(), done


@check
def keys_of_an_entry():
    record("all")
    take(MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    return sorted(trace[-1]), trace[-1]["compile_context"], trace[-1]["user_metadata"]


@check
def times_ascend_and_are_of_today():
    import time

    before = time.time()
    record("all")
    for _ in range(20):
        take(MIB)
    times = [entry["time_us"] / 1e6 for entry in snapshot()["device_traces"][0]]
    stop()
    assert times == sorted(times)
    assert before - 5 < times[0] <= times[-1] < time.time() + 5


@check
def memory_from_the_driver_comes_before_the_block():
    torch.cuda.empty_cache()
    record("all")
    kept = take(40 * MIB)
    entries = [e for e in snapshot()["device_traces"][0] if e["action"] != "snapshot"]
    ahead = [e for e in entries if segment_actions(e)]
    assert segment_actions(entries[0])
    assert entries[-1]["action"] == "alloc"
    begin, size = ahead[-1]["addr"], sum(e["size"] for e in ahead)
    assert begin <= kept.data_ptr()
    assert kept.data_ptr() + 40 * MIB <= begin + size
    del kept
    torch.cuda.empty_cache()
    last = snapshot()["device_traces"][0][-1]
    stop()
    assert segment_actions(last)
    assert last["action"] != "segment_alloc"


@check
def segments_of_the_history_add_up():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    record("all")
    kept = [take(size * MIB) for size in (30, 1, 8, 64, 2)]
    del kept[::2]
    kept += [take(size * MIB) for size in (70, 3)]
    held = 0
    for entry in snapshot()["device_traces"][0]:
        held += entry["size"] * (entry["action"] in ("segment_alloc", "segment_map"))
        held -= entry["size"] * (entry["action"] in ("segment_free", "segment_unmap"))
    stop()
    assert held == torch.cuda.memory_reserved() - before


@check
def level_state():
    record("state")
    tensor = allocate_here(MIB)
    block, trace = block_of(tensor), snapshot()["device_traces"][0]
    del tensor
    stop()
    return functions(block["frames"]) & {"allocate_here", "release_here"} == {"allocate_here"}, [
        functions(entry.get("frames", ())) for entry in trace if entry["action"] == "alloc"
    ]


@check
def levels_of_contexts():
    found = {}
    for context in ("state", "alloc", "all", None):
        record("all", context=context, stacks="python")
        kept = [allocate_here(MIB)]
        frames = functions(block_of(kept[0])["frames"])
        in_block = sorted(frames & {"allocate_here", "release_here"})
        release_here(kept)
        trace = snapshot()["device_traces"][0]
        stop()
        found[str(context)] = [
            in_block,
            [
                (
                    entry["action"],
                    sorted(functions(entry.get("frames", ())) & {"allocate_here", "release_here"}),
                )
                for entry in trace
                if entry["action"] in ("alloc", "free_requested", "free_completed")
            ],
        ]
    return found


@check
def free_after_a_wait_has_no_call_of_its_own():
    record("all", stacks="python")
    kept = [allocate_here(3 * MIB)]
    kept[0].record_stream(torch.cuda.Stream())
    release_here(kept)
    torch.cuda.synchronize()
    take(MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    frames = {e["action"]: functions(e.get("frames", ())) for e in trace if e["size"] == 3 * MIB}
    return "release_here" in frames["free_requested"], "release_here" in frames["free_completed"]


@check
def emptying_the_cache_has_a_context():
    def empty_here():
        torch.cuda.empty_cache()

    take(40 * MIB)
    torch.cuda.synchronize()
    record("all", stacks="python")
    empty_here()
    trace = [e for e in snapshot()["device_traces"][0] if segment_actions(e)]
    stop()
    return bool(trace), all("empty_here" in functions(entry.get("frames", ())) for entry in trace)


@check
def segments_know_who_asked_for_them():
    torch.cuda.empty_cache()
    record("all", stacks="python")
    kept = allocate_here(40 * MIB)
    around = [
        segment
        for segment in snapshot()["segments"]
        if segment["address"] <= kept.data_ptr() < segment["address"] + segment["total_size"]
    ]
    stop()
    return ["allocate_here" in functions(segment["frames"]) for segment in around]


@check
def segments_forget_whose_memory_was_freed():
    found = {}
    for context in ("state", "alloc", "all"):
        for size in (512, MIB, 2 * MIB, 3 * MIB, 8 * MIB, 10 * MIB, 30 * MIB):
            torch.cuda.empty_cache()
            record("all", context=context, stacks="python")
            kept = [allocate_here(size)]
            release_here(kept)
            segments = snapshot()["segments"]
            stop()
            found[f"{context}, {size}"] = any(
                "allocate_here" in functions(segment["frames"]) for segment in segments
            )
    return found


@check
def only_the_newest_entries():
    record("all", max_entries=5)
    for size in range(1, 20):
        take(size * KIB)
    trace = snapshot()["device_traces"][0]
    stop()
    return [(entry["action"], entry["size"]) for entry in trace]


@check
def recording_again_clears_on_request_only():
    record("all")
    take(MIB)
    record("all")
    kept = len(actions(snapshot()["device_traces"][0]))
    record("all", clear_history=True)
    cleared = len(actions(snapshot()["device_traces"][0]))
    stop()
    return kept, cleared, len(snapshot()["device_traces"][0])


@check
def skipped_actions():
    record("all", skip_actions=["free_requested", "segment_alloc", "segment_map", "snapshot"])
    take(64 * MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    return Counter(entry["action"] for entry in trace)


@check
def an_unknown_action_is_refused():
    kind, text = error_of(lambda: record("all", skip_actions=["no_such_action"]))
    stop()
    return kind, text.splitlines()[0]


@check
def the_snapshot_marks_itself_for_the_next():
    record("all")
    snapshot()
    trace = snapshot()["device_traces"][0]
    stop()
    return [
        (e["action"], e["addr"], e["size"] == torch.cuda.memory_stats()["active_bytes.all.current"])
        for e in trace
    ]


@check
def user_metadata():
    torch._C._cuda_setMemoryMetadata("phase one")
    record("all")
    take(MIB)
    torch._C._cuda_setMemoryMetadata("")
    take(MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    return torch._C._cuda_getMemoryMetadata(), [e["user_metadata"] for e in trace]


def notes_of_a_move():
    """The entries about ranges when a request is served from the holes of two others."""
    first, wall, second = take(8 * MIB), take(2 * MIB), take(8 * MIB)
    last = take(2 * MIB)
    del first, second
    record("all")
    kept = take(16 * MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    del kept, wall, last
    place = "internal_metadata" if "internal_metadata" in trace[0] else "user_metadata"
    return [(e["action"], e["size"] // MIB, e[place]) for e in trace if segment_actions(e)]


@check
def pages_that_move_say_why_and_what_it_took():
    if ALLOCATOR != "ferro":
        return  # nothing moves there
    *unmapped, (action, size, note) = notes_of_a_move()
    assert unmapped == [("segment_unmap", 8, "ferro_alloc: moved")] * 2, unmapped
    assert (action, size) == ("segment_map", 16)
    assert re.fullmatch(r"ferro_alloc: move_pages, 8 pages moved, \d+ us", note), note


@check
def the_words_of_the_program_stay():
    torch._C._cuda_setMemoryMetadata("phase two")
    record("all")
    take(64 * MIB)
    torch._C._cuda_setMemoryMetadata("")
    trace = snapshot()["device_traces"][0]
    stop()
    return sorted({entry["user_metadata"] for entry in trace if entry["action"] != "snapshot"})


@check
def annotations_of_record_function():
    record("all", global_record_annotations=True)
    with torch.autograd.profiler.record_function("a phase"):
        take(MIB)
    found = snapshot()["external_annotations"]
    stop()
    return [sorted(entry) for entry in found if entry.get("name") == "a phase"], [
        (entry["stage"], entry["device"]) for entry in found if entry.get("name") == "a phase"
    ]


@check
def pools_in_the_history():
    pool = torch.cuda.MemPool()
    record("all")
    with torch.cuda.use_mem_pool(pool):
        kept = take(MIB)
    trace = snapshot()["device_traces"][0]
    stop()
    in_pool = [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == tuple(pool.id)]
    holds = [s["address"] <= kept.data_ptr() < s["address"] + s["total_size"] for s in in_pool]
    return [e["action"] for e in trace if not segment_actions(e)], holds


@check
def snapshot_of_one_pool_without_traces():
    pool = torch.cuda.MemPool()
    record("all")
    with torch.cuda.use_mem_pool(pool):
        kept = take(MIB)
    found = pool.snapshot()
    stop()
    del kept
    return sum(len(segment["blocks"]) > 0 for segment in found)


@check
def out_of_memory_is_in_the_history_and_observed():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts))
    record("all", stacks="python")
    kind, _ = error_of(lambda: allocate_here(1 << 40))
    trace = snapshot()["device_traces"][0]
    ooms = [entry for entry in trace if entry["action"] == "oom"]
    stop()
    device, size, total, free = seen[-1]
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
    return (
        kind,
        len(seen),
        device,
        size,
        [(e["size"], "allocate_here" in functions(e["frames"]), "device_free" in e) for e in ooms],
    )


@check
def an_observer_that_raises_changes_nothing():
    calls = []

    def observer(*facts):
        calls.append(facts)
        raise ValueError("from the observer")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    kept = take(MIB)
    before = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["num_ooms"]
    raised = [error_of(lambda: take(1 << 40))[0] for _ in range(2)]
    after = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["num_ooms"]
    kept.zero_()
    return raised, len(calls), after[0] - before[0], after[1] - before[1]


@check
def the_viewer_reads_it():
    record("all")
    kept = [take(size * KIB) for size in (1, 700, 3000, 30000)]
    del kept[1]
    taken = snapshot()
    stop()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(file))
        assert sorted(pickle.loads(file.read_bytes())) == sorted(taken)
    pages = [
        _memory_viz.trace_plot(taken),
        _memory_viz.segment_plot(taken),
        _memory_viz.segsum(taken),
        _memory_viz.trace(taken),
        _memory_viz.segments(taken, format_flamegraph=undrawn),
        _memory_viz.memory(taken, format_flamegraph=undrawn),
    ]
    assert all(pages)
    return sorted(taken), sorted(taken["segments"][0]), sorted(taken["segments"][0]["blocks"][0])


@check
def two_snapshots_compare():
    before = snapshot()
    kept = take(40 * MIB)
    text = _memory_viz.compare(before["segments"], snapshot()["segments"], undrawn)
    del kept
    return bool(text)


@check
def the_profiler_sees_allocations():
    # Without a GPU CUPTI 13.2 crashes as it starts; memory is the host's to report.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, record_shapes=True
    ) as profiler:
        kept = take(3 * MIB)
        del kept
    events = [e for e in profiler.events() if e.name == "[memory]"]
    return [e.self_device_memory_usage for e in events]


@check
def settings_are_in_the_snapshot():
    settings = snapshot()["allocator_settings"]
    return sorted(settings)


finish()
