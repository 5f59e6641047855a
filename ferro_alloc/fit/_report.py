"""The text report of a simulated run, which begins with the verdict."""

from __future__ import annotations

from ferro_alloc import _variable
from ferro_alloc._status import size_text
from ferro_alloc._tables import table
from ferro_alloc.fit import _certainty, _range, _ranks, _refused, _workspaces
from ferro_alloc.fit._lost import ending
from ferro_alloc.fit._result import FITTING, RAN_OUT, TIGHT, UNKNOWN, Result
from ferro_alloc.fit._shortage import is_limited, short_by
from ferro_alloc.fit._stopping import TIME_LIMIT
from ferro_alloc.sim._missing import times

SMALLEST_SHARE = 0.002
"""Minimum share of held memory for a kind or a line to be listed."""
NAMED_SHARE = 0.1
"""Minimum share of a line's memory for a kind to be named behind it."""
UNUSED = "no memory of a GPU was used, so this says nothing about a GPU"
NO_DEVICE = "invalid device ordinal"
"""In the error of CUDA for a device that there is not."""
TOO_TIGHT = (
    f"less than {100 * TIGHT:.0f} % is left, and a real card may differ by as much from the "
    "simulated one: leave more room"
)
WENT_ON = (
    "what it did after that fits. If it looked for a batch size, run it with the one that it "
    "found; if it left work out, that work does not fit"
)
"""Of a program that caught its errors."""
WITHOUT_VALUES = (
    "The error may come from a check of values, such as a learning rate in a tensor, because none "
    "were computed: leave out --no-values, --no-backing and --mode, or make the tensor on the host"
)
"""Of a program that an error ended."""
KIND_NAMES = {
    "parameters": "parameters",
    "buffers": "buffers",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "kv_cache": "KV cache",
    "libraries": "cuBLAS workspaces",
    "activations": "activations",
    "graphs": "graphs",
    "temporaries": "temporaries",
    "other": "other",
}


def how_to_use() -> str:
    """What to do about a program that used no GPU."""
    text = (
        'With .to("cuda") a program uses one; with torchrun, simulate the ranks: torchrun ... -m '
        "ferro_alloc simulate ... train.py"
    )
    return text + of_other_processes()


def of_other_processes() -> str:
    """What processes lack that the program starts, if ferro_alloc is not installed for them."""
    if _variable.is_in_place():
        return ""
    return (
        "; other processes that it starts have no simulated GPU, because ferro_alloc is not "
        "installed: docs/installing.md"
    )


def verdict(result: Result) -> str:
    least = min(result["devices"], key=lambda device: int(device["spare_bytes"]))
    spare = least["spare_bytes"]
    capacity = result["card"]["memory_bytes"]
    if result["verdict"] == RAN_OUT:
        missing = short_by(result)
        known = "" if _certainty.lacks_surely(result) else " AS FAR AS KNOWN"
        short = f": short by at least {size_text(missing)}" if missing else ""
        where = " in the program's own limit" if is_limited(result["out_of_memory"] or {}) else ""
        text = f"DOES NOT FIT{known}{where}{short}"
        failure = result["out_of_memory"]
        if result["went_on"]:
            text += f"; the program caught it ({failure['count']} x) and went on to its end"
        return text
    is_tight = spare < TIGHT * capacity
    share = f"{100 * spare / capacity:.{1 if is_tight else 0}f} %"
    room = f"{'only ' if is_tight else ''}{size_text(spare)} to spare ({share}){_on(result, least)}"
    if not result["gpu_used"]:
        is_complete = result["verdict"] in FITTING
        if is_complete:
            return f"{UNUSED}. {how_to_use()}"
        more = of_other_processes() if "Process" in result["error"] else ""
        return f"{UNUSED}: {_end(result)}{more}"
    if result["verdict"] in FITTING:
        return f"{result['verdict'].upper()}, with {room}"
    if end := _refused.end_of(result):
        return (
            f"NOT KNOWN: the simulated GPU lacks functions of {end['library']}, and that ended the "
            f"program. Until then it FITS, with {room}"
        )
    return f"FITS as far as it ran, with {room}: {_end(result)}"


def _on(result: Result, held: Result) -> str:
    """The device of several."""
    return f" on device {held['index']}" if len(result["devices"]) > 1 else ""


def _end(result: Result) -> str:
    """How a program ended that neither fitted nor ran out of memory."""
    if result["partial"] == TIME_LIMIT:
        return f"the time limit ended it after {result['seconds']:.0f} s, so this report is partial"
    after = _ranks.after_others(result)
    if result["partial"]:
        at = f" at {result['ended_at']}" if after and result["ended_at"] else ""
        return f"it was {result['partial']}{at}{after}, so this report is partial"
    if result["ended_by"]:
        return end_by_value(result, after)
    name = result["error"].partition(":")[0]
    if name in ("", "SystemExit"):
        return f"it ended with status {result['program_status']}{after}"
    # The error's text stands above, in the traceback.
    at = f" at {result['ended_at']}" if result["ended_at"] else ""
    more = "; --count gives it more cards" if NO_DEVICE in result["error"] else ""
    more += f". {WITHOUT_VALUES}" if is_end_without_values(result) else ""
    return f"it ended with status {result['program_status']} ({name}{at}){after}{more}"


def is_end_without_values(result: Result) -> bool:
    """Whether an error ended a program that may not occur where values are computed."""
    is_error = result["verdict"] == UNKNOWN and not result["partial"] and result["error"]
    return bool(
        is_error
        and not result["error"].startswith("SystemExit")
        and result["gpu_used"]
        and not result["values"]
    )


def end_by_value(result: Result, after: str = "") -> str:
    """Why the end of a program that read uncomputed values may be none on a card. `after` says
    which ranks had ended before."""
    error = result["error"].rstrip(".")
    return (
        f"it ended with {error}{after}. If that comes from a value that the simulated GPU "
        f"does not compute (the last was read at {result['ended_by']}), it may not occur on a "
        "card"
    )


def _spare_text(result: Result) -> str:
    return size_text(min(device["spare_bytes"] for device in result["devices"]))


def is_same(result: Result, other: Result) -> bool:
    """Whether a run with other rows fits as surely, with the same spare memory."""
    fits = result["verdict"] in FITTING and not other.get("instead_of")
    is_as_sure = result["verdict"] == other["verdict"]
    return fits and is_as_sure and _spare_text(result) == _spare_text(other)


def with_other_rows(result: Result) -> str:
    """What runs with other rows change of the verdict, for its line."""
    found, same = [], []
    for run in _range.EXTRA_RUNS:
        rows = {"all": "all rows", "none": "the fewest rows"}[run.rows]
        other = result[run.key]
        if other is None:
            is_lost = any(lost["rows"] == run.rows for lost in result["lost_runs"])
            found += [f"not known with {rows}"] if is_lost else []
        elif is_same(result, other):
            same.append(f"with {rows}")
        elif other["verdict"] in FITTING and result["verdict"] in FITTING:
            found.append(f"{_spare_text(other)} with {rows}")
        elif other["verdict"] in FITTING:
            found.append(f"it FITS with {rows}")
        elif other["verdict"] != RAN_OUT:
            found.append(f"not known with {rows}")
        elif result["verdict"] != RAN_OUT:
            found.append(f"it DOES NOT FIT with {rows}")
    if same:
        found.insert(0, f"the same {' and '.join(same)}")
    return "".join(f"; {each}" for each in found)


def range_of(result: Result) -> list[str]:
    """Lines about the runs with as many and with as few rows as possible, if these differ."""
    lines = []
    for run, amount in zip(_range.EXTRA_RUNS, ("many", "few"), strict=True):
        found = result[run.key]
        amount = f"as {amount} rows as possible"
        for lost in result["lost_runs"]:
            if lost["rows"].partition("-")[0] == run.rows:
                of_zeros = ", and masks as of zeros," if lost["rows"] != run.rows else ""
                lines.append(f"  with {amount}{of_zeros} the run {ending(lost['status'])}")
        if found is None:
            continue
        first = found.get("instead_of")
        if is_same(result, found):
            continue  # the first line has it
        if first is not None:
            lines.append(f"  with {amount} it {early_end(first)}")
            amount += ", and masks as of zeros,"
        said = verdict(found) if found["verdict"] in (*FITTING, RAN_OUT) else early_end(found)
        but = "but " if found["verdict"] in FITTING and result["verdict"] == RAN_OUT else ""
        but = "but " if found["verdict"] == RAN_OUT and result["verdict"] != RAN_OUT else but
        lines.append(f"  {but}with {amount} it {said}")
    return lines


def early_end(result: Result) -> str:
    """How a run with other rows ended that tells nothing about its end on a card."""
    peak = max(device["peak_in_use_bytes"] for device in result["devices"])
    place = f" at {result['ended_at']}" if result["ended_at"] else ""
    if result["partial"] == TIME_LIMIT:
        why = f"the time limit ended it after {result['seconds']:.0f} s{place}"
    elif result["partial"]:
        why = f"it was {result['partial']}{place}"
    elif result["error"]:
        why = f"{result['error']}{place}"
    else:
        why = f"status {result['program_status']}"
    return f"ended early, with {size_text(peak)} in use until then ({why})"


def memory_text(card: Result) -> str:
    """The memory of a card, for a title."""
    return f"{size_text(card['memory_bytes'])}{' (set)' if card['own_memory'] else ''}"


def lines_of(result: Result) -> list[str]:
    """The whole report."""
    card = result["card"]
    count = len(result["devices"])
    name = f"{f'{count} x ' if count > 1 else ''}{card['name']}"
    head = f"{name}, {memory_text(card)}, allocator {result['allocator']}"
    said = f"{verdict(result)}{with_other_rows(result)}"
    lines = ["", f"simulated {head}", f"  {said}", *_refused.end_lines(result)]
    failure = result["out_of_memory"]
    if not result["gpu_used"] and not failure:
        return lines
    lines += remarks_of(result)
    if failure and "requested_bytes" in failure:
        lines += _parts(failure, "at that moment")
    for device in result["devices"]:
        if count > 1 and _is_unused(device):
            lines += ["", f"  device {device['index']}: not used"]
            continue
        lines += ["", *([f"  device {device['index']}"] if count > 1 else [])]
        lines += _device(result, device)
    if result["unknown_kinds"]:
        lines.append(f"  kinds and lines are not known: {result['unknown_kinds']}")
    return lines


def remarks_of(result: Result) -> list[str]:
    """The lines between the verdict and the figures: what the verdict depends on."""
    failure = result["out_of_memory"]
    if not result["gpu_used"] and not failure:
        return []
    lines = [f"  {TOO_TIGHT}"] if result["tight"] else []
    lines += [f"  {WENT_ON}"] if result["went_on"] else []
    lines += range_of(result)
    if failure:
        lines += _cause(result, failure)
    lines += _certainty.lines_of(result)
    lines += _workspaces.lines_of(result)
    if others := result["other_engines"]:
        lines.append(f"  cuDNN took another algorithm for lack of memory, {times(others)}")
    return lines


def _cause(result: Result, failure: Result) -> list[str]:
    """What the request asked for, and what there was."""
    if "requested_bytes" not in failure:
        return [f"  {failure['error']}"]
    where = f" at {failure['file']}:{failure['line']}" if failure["file"] else ""
    cached = failure["reserved_bytes"] - failure["allocated_bytes"]
    free = size_text(failure["device_free_bytes"])
    card = f"device {failure['device']}" if len(result["devices"]) > 1 else "the card"
    would_do = failure["device_free_bytes"] + cached >= failure["requested_bytes"]
    pieces = ", in pieces that could not serve it" if would_do else ""
    lines = [
        f"  asked for {size_text(failure['requested_bytes'])}{where}, while {card} had {free} "
        f"free and the allocator {size_text(cached)} more{pieces}",
    ]
    if is_limited(failure):
        ours = " or memory_limit_mb" if result["allocator"] == "ferro_alloc" else ""
        limits = f"set_per_process_memory_fraction(){ours}"
        lines.append(
            f"  {size_text(failure['reserved_bytes'])} were reserved of "
            f"{size_text(failure['limit_bytes'])}, the limit by {limits} in the program"
        )
    return lines


def _is_unused(device: Result) -> bool:
    return not device["peak_in_use_bytes"]


def _device(result: Result, device: Result) -> list[str]:
    card = result["card"]
    source = card["context_source"]
    rows = [
        ("memory of the card", size_text(card["memory_bytes"])),
        (f"CUDA context ({source})", size_text(card["context_bytes"])),
        ("GPU code of libraries (as on an H100)", size_text(card["libraries_bytes"])),
        ("peak reserved by PyTorch", size_text(device["peak_reserved_bytes"])),
        ("  peak in use by tensors", size_text(device["peak_allocated_bytes"])),
    ]
    if device["outside_bytes"]:
        rows.append(("other memory of the driver", size_text(device["outside_bytes"])))
    rows.append(("least free memory", size_text(device["spare_bytes"])))
    lines = table(rows)
    if device["emptied_cache"]:
        often = times(device["emptied_cache"])
        lines.append(f"  short of memory, the allocator emptied its cache {often}")
    if not result["out_of_memory"]:
        lines += _parts(device, "at the peak")
    return lines


def _parts(held: Result, title: str) -> list[str]:
    if not held["kinds"]:
        return []
    total = sum(held["kinds"].values())
    kinds = [
        (KIND_NAMES[kind], size_text(size), f"{100 * size / total:.0f} %")
        for kind, size in held["kinds"].items()
        if size > SMALLEST_SHARE * total
    ]
    places = [
        (_place(line), size_text(line["bytes"]), _kinds_of(line))
        for line in held["lines"]
        if line["bytes"] > SMALLEST_SHARE * total
    ]
    return [
        *("", *table([(f"{title}, by kind", "", ""), *kinds])),
        *_tags(held, title, total),
        *("", *table([(f"{title}, by line", "", ""), *places])),
    ]


def _tags(held: Result, title: str, total: int) -> list[str]:
    if not held["tags"]:
        return []
    rows = [*held["tags"].items(), ("(no tag)", total - sum(held["tags"].values()))]
    shares = [(name, size_text(size), f"{100 * size / total:.0f} %") for name, size in rows]
    return ["", *table([(f"{title}, by tag", "", ""), *shares])]


def _place(line: Result) -> str:
    if not line["file"]:
        return "(no line of the program)"
    node = f" ({line['backward_of']})" if line["backward_of"] else ""
    return f"{line['file']}:{line['line']} {line['function']}{node}"


def _kinds_of(line: Result) -> str:
    """The kinds of a line's memory, the largest first."""
    return ", ".join(
        KIND_NAMES[kind]
        for kind, size in line["kinds"].items()
        if size >= NAMED_SHARE * line["bytes"]
    )
