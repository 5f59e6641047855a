"""Reads PyTorch's own allocator settings, to name those that have no effect any more."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ferro_alloc.config import Layout

# In the order in which PyTorch looks for them; the first that is set is the one in force.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# These steer the allocator of pinned host memory, which stays PyTorch's own.
_KEPT_PREFIX = "pinned_"

# These mean here what they mean there.
_FOLLOWED = frozenset({"roundup_power2_divisions", "per_process_memory_fraction"})

# Followed, or always so, with pages.
_ABOUT_PAGES = frozenset({"graph_capture_record_stream_reuse", "expandable_segments"})

# With the layout `segments` PyTorch's own allocator follows all but this one, which is off there.
_EXPANDABLE = "expandable_segments"

# A value is a bracketed list or runs to the next comma.
_PAIR = re.compile(r"\s*([\w.]+)\s*:\s*(\[[^\]]*\]|[^,]*)\s*(?:,|$)")


def _is_followed(key: str) -> bool:
    return key.startswith(_KEPT_PREFIX) or key in _FOLLOWED | _ABOUT_PAGES


def ignored_options(
    environ: Mapping[str, str] | None = None, layout: Layout = "pages"
) -> tuple[str, ...]:
    """The settings of the native allocator that ferro_alloc does not follow, as `key:value`.

    Each key is named once, with the value that counts: the last.
    """
    source = os.environ if environ is None else environ
    text = next((source[name] for name in VARIABLES if source.get(name)), "")
    return tuple(
        f"{key}:{value.strip()}"
        for key, value in dict(_PAIR.findall(text)).items()
        if (key == _EXPANDABLE if layout == "segments" else not _is_followed(key))
    )
