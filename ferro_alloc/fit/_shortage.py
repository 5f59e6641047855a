"""How much memory a failed request lacked."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def short_by(result: Result) -> int:
    """Minimum bytes that the request lacked, beyond the driver's free memory or the limit."""
    failure = result["out_of_memory"] or {}
    requested = int(failure.get("requested_bytes", 0))
    if is_limited(failure):
        return int(failure["reserved_bytes"]) + requested - int(failure["limit_bytes"])
    return max(0, requested - int(failure.get("device_free_bytes", 0)))


def is_limited(failure: Result) -> bool:
    """Whether the program's own limit, and not the card, refused a request."""
    limit = failure.get("limit_bytes")
    return limit is not None and failure["reserved_bytes"] + failure["requested_bytes"] > limit
