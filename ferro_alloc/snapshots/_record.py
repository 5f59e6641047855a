"""A history that is cheap enough to stay on."""

from __future__ import annotations

from ferro_alloc._errors import FerroError

ENTRIES = 100_000
SAMPLE_BYTES = 1 << 20


def record_history(*, max_entries: int = ENTRIES, sample_bytes: int = SAMPLE_BYTES) -> None:
    """Records the history of CUDA memory, with stacks for a sample of requests.

    It equals `torch.cuda.memory._record_memory_history(context="alloc", stacks="python",
    max_entries=max_entries, skip_actions=["free_requested"])`, except for the stacks, which are the
    largest cost. Under ferro_alloc one request for each `sample_bytes` bytes of a thread has a
    stack, on average and at random, as in a heap profiler: nearly all large requests, and few small
    ones. With 0 all have one, and under another allocator too. Sampling ends with the next call of
    `_record_memory_history`, the history with
    `torch.cuda.memory._record_memory_history(enabled=None)`. Initialises CUDA.

    Raises `FerroError` for invalid numbers.
    """
    for name, value, least in (("max_entries", max_entries, 1), ("sample_bytes", sample_bytes, 0)):
        if not isinstance(value, int) or value < least:
            raise FerroError(f"{name} is {value!r}: expected a whole number of at least {least}")
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(
        context="alloc",
        stacks="python",
        max_entries=max_entries,
        # If a block waits for another stream, it ends with the wait.
        skip_actions=["free_requested"],
    )
    if torch.cuda.get_allocator_backend() == "ferro_alloc":
        from ferro_alloc import _load

        _load.load().sample_stacks(sample_bytes)
