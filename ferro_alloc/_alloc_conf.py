"""Reads PyTorch's own allocator settings, to list those without an effect."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ferro_alloc.config import Layout

# In the order in which PyTorch reads them; the first that is set is in force.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# These configure the allocator of pinned host memory, which stays PyTorch's own.
_KEPT_PREFIX = "pinned_"

# These have the same meaning under both allocators.
_FOLLOWED = frozenset({"roundup_power2_divisions", "per_process_memory_fraction"})

# With pages these are followed, or always on.
_ABOUT_PAGES = frozenset({"graph_capture_record_stream_reuse", "expandable_segments"})

# With the layout `segments` PyTorch's own allocator follows all settings except this one, which is
# off.
_EXPANDABLE = "expandable_segments"

# A value is a bracketed list or runs to the next comma.
_PAIR = re.compile(r"([\w.]+):(\[[^\]]*\]|[^,]*)(?:,|$)")


def _is_followed(key: str) -> bool:
    return key.startswith(_KEPT_PREFIX) or key in _FOLLOWED | _ABOUT_PAGES


def ignored_options(
    environ: Mapping[str, str] | None = None, layout: Layout = "pages"
) -> tuple[str, ...]:
    """Returns the settings of the native allocator that ferro_alloc ignores, as `key:value`.

    Each key appears once, with its last value, which is in force.
    """
    source = os.environ if environ is None else environ
    text = next((source[name] for name in VARIABLES if source.get(name)), "")
    words = "".join(text.split())  # PyTorch skips blanks everywhere, also within a word
    return tuple(
        f"{key}:{value}"
        for key, value in dict(_PAIR.findall(words)).items()
        if (key == _EXPANDABLE if layout == "segments" else not _is_followed(key))
    )
