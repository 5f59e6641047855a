"""CUDA tensors shared between two processes. Arguments: the allocators of this process and of the
other one, and a JSON object with the settings of the simulated GPU (null: a real one) and whether
the other process may take descriptors by pidfd_getfd.
"""

import gc
import json
import os
import resource
import sys
import threading
from typing import Any

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    check,
    churn_under_pressure,
    error_of,
    finish,
    words,
)

_options = json.loads(sys.argv[3])
os.environ["SHARING_PEER"] = json.dumps(
    {
        "parent": os.getpid(),
        "allocator": sys.argv[2],
        "sim": _options["sim"],
        "simulated": _options["sim"] is not None,
        "refuse_pidfd": _options["refuse_pidfd"],
        "fork": _options.get("fork", False),
    }
)

import torch
import torch.multiprocessing
from sharing_peer import OtherProcess, filled, is_filled, open_descriptors, refill

# Lower than the hard limit, as by default, so the simulated driver's descriptors do not count.
_, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, _hard), _hard))
_other = OtherProcess()
ask = _other.ask


def collect() -> None:
    gc.collect()
    torch.cuda.ipc_collect()


@check
def a_tensor_reaches_the_other_process() -> Any:
    tensor = filled(4 * MIB, 1)
    return ask("check", tensor, 1)


@check
def writes_of_the_other_process_are_visible() -> Any:
    tensor = filled(64 * KIB, 1)
    return [ask("refill", tensor, 100), is_filled(tensor, 100)]


@check
def a_view_keeps_its_offset() -> Any:
    tensor = filled(6 * MIB, 0)
    view = tensor[700 * KIB : 900 * KIB]
    return [ask("check", view, 700 * KIB), ask("refill", view, 5), is_filled(view, 5)]


@check
def small_tensors_of_one_page() -> Any:
    tensors = [filled(4 * KIB, 1000 * i) for i in range(8)]
    first = [ask("hold", f"small {i}", tensor) >= 0 for i, tensor in enumerate(tensors)]
    seen = [ask("check_held", f"small {i}", 1000 * i) for i in range(8)]
    refill(tensors[3], 77)
    changed = ask("check_held", "small 3", 77)
    return [first, seen, changed, [ask("drop", f"small {i}") for i in range(8)]]


@check
def a_tensor_shared_twice_is_one_mapping() -> Any:
    tensor = filled(4 * MIB, 3)
    addresses = {ask("hold", name, tensor) for name in ("first", "second")}
    dropped = [ask("drop", "first"), ask("check_held", "second", 3), ask("drop", "second")]
    return [len(addresses), dropped]


@check
def a_tensor_of_the_other_process() -> Any:
    tensor = ask("make", 4 * MIB, 9)
    before = is_filled(tensor, 9)
    refill(tensor, 50)
    del tensor
    gc.collect()
    return [before, ask("check_held", "made", 50), ask("drop", "made")]


@check
def the_consumer_releases_first() -> Any:
    tensor = filled(4 * MIB, 2)
    ask("hold", "held", tensor)
    ask("drop", "held")
    collect()
    return is_filled(tensor, 2)


@check
def the_producer_releases_first() -> Any:
    tensor = filled(4 * MIB, 12)
    ask("hold", "held", tensor)
    live = torch.cuda.memory_allocated()
    del tensor
    collect()
    # The memory stays allocated as long as the other process has it open.
    kept = torch.cuda.memory_allocated() == live
    others = [filled(4 * MIB, 90 + i) for i in range(4)]
    seen = ask("check_held", "held", 12)
    ask("drop", "held")
    collect()
    freed = live - (torch.cuda.memory_allocated() - 4 * len(others) * MIB)
    return [kept, seen, freed]


@check
def a_big_tensor() -> Any:
    tensor = filled(120 * MIB, 7)
    refill(tensor[:1024], 7)
    before, peer_before = open_descriptors(), ask("descriptors")
    seen = ask("check", tensor, 7)
    there = ask("refill", tensor, 8)
    # This process opens one for each handle, and the other none. Other parts of a process open some
    # too.
    taken = open_descriptors() - before <= 64 and ask("descriptors") - peer_before <= 2
    return [seen, there, is_filled(tensor, 8), taken]


@check
def a_thread_writes_a_tensor_while_another_shares_it() -> Any:
    seen = []
    stream = torch.cuda.Stream()
    hosts = words(5, 40 * MIB).pin_memory().split(2 * KIB)

    def write(pieces: Any, started: threading.Event) -> None:
        """Writes each byte once: a lost byte is not written again."""
        with torch.cuda.stream(stream):
            started.set()
            torch._foreach_copy_(pieces, hosts, non_blocking=True)

    for _ in range(4):
        tensor = filled(40 * MIB, 0)
        torch.cuda.synchronize()
        started = threading.Event()
        writer = threading.Thread(target=write, args=(tensor.split(2 * KIB), started))
        writer.start()
        started.wait()
        shared = tensor.untyped_storage()._share_cuda_()
        writer.join()
        torch.cuda.synchronize()
        seen += [is_filled(tensor, 5), ask("check", tensor, 5)]
        torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])
        del tensor
        collect()
    return seen


@check
def memory_is_written_again_after_it_was_shared() -> Any:
    seen = []
    for tag in range(5):
        tensor = filled(40 * MIB, tag)
        seen.append(ask("check", tensor, tag))
        del tensor
        collect()
    torch.cuda.empty_cache()
    other = filled(40 * MIB, 70)
    return [seen, ask("check", other, 70)]


@check
def shared_memory_stays_while_memory_is_short() -> Any:
    mine, theirs = filled(20 * MIB, 3), ask("make", 20 * MIB, 5)
    ask("hold", "short", mine)
    address = mine.data_ptr()
    churn_under_pressure(8)
    seen = [mine.data_ptr() == address, is_filled(mine, 3), is_filled(theirs, 5)]
    seen += [ask("check_held", "short", 3), ask("refill", mine, 8), is_filled(mine, 8)]
    del theirs
    ask("drop", "short")
    ask("drop", "made")
    return seen


@check
def events_order_the_processes() -> Any:
    event = torch.cuda.Event(interprocess=True)
    stream = torch.cuda.Stream()
    host = torch.arange(21, 21 + MIB, dtype=torch.int32).pin_memory()
    tensor = filled(4 * MIB, 0)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor.copy_(host, non_blocking=True)
        event.record()
    return ask("wait_for", event, tensor, 21)


@check
def a_received_tensor_is_not_sent_on() -> Any:
    tensor = ask("make", 64 * KIB, 4)
    kind, text = error_of(tensor.untyped_storage()._share_cuda_)
    del tensor
    gc.collect()
    ask("drop", "made")
    return [kind, text.splitlines()[0]]


@check
def handles_from_the_future_are_refused() -> Any:
    tensor = filled(64 * KIB, 4)
    device, handle, *rest = tensor.untyped_storage()._share_cuda_()
    newer = b"\x63" + handle[1:]
    size, offset, counter, counter_offset, event, _ = rest
    arguments = (device, newer, size, offset, counter, counter_offset, event, False)
    kind, text = error_of(lambda: torch.UntypedStorage._new_shared_cuda(*arguments))
    torch.UntypedStorage._release_ipc_counter_cuda(counter, counter_offset)
    return [kind, text.splitlines()[0]]


@check
def the_kernel_has_the_settings_of_the_test() -> Any:
    return ask("takes_descriptors_of", os.getpid()) != _options["refuse_pidfd"]


@check
def nothing_stays_mapped() -> Any:
    collect()
    held = ask("reserved")
    if _options["sim"] is None:
        return True
    # One page is for the peer's own word.
    return ask("mapped") * 2 * MIB <= max(held, 2 * MIB) + 2 * MIB


_other.end()
assert (sys.argv[1] != "native") == FERRO
finish()
