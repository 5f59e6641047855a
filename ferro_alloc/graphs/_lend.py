"""Scratch of idle graphs serves eager work."""

from __future__ import annotations

from typing import cast

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._exclusive import ExclusiveGroup, Member, exclusive, pool_of_member
from ferro_alloc.graphs._groups import exclusive_groups


def lend(*members: Member, enabled: bool = True) -> ExclusiveGroup:
    """Between replays the dead scratch of these graphs serves requests that would fail otherwise.

    `members` are an `ExclusiveGroup`, or graphs and pools, as `exclusive()` takes them: all of one
    group, which lends as a whole, or of none, and then they become a group of their own. Returns
    the group, which ferro_alloc keeps as long as it lends.

    A request that nothing else serves takes the pages; the host waits for the device. The next
    `CUDAGraph.replay` or `CapturedGraph.launch` of the group puts others behind the same addresses
    first. For these free memory of others goes first, as for any request. Where there are none, the
    launch raises `LentScratchError` and nothing is launched. A launch from C++ that does not go
    through either finds no memory there, which is an illegal access.

    `enabled=False` ends it. What is lent comes back at once, or before the next launch if there is
    no memory for it now. Nothing of the group may be launched meanwhile. Raises `FerroError` for
    members of several groups, and as `exclusive` does.
    """
    group = _group_of(members)
    if group is None:
        if not enabled:
            raise FerroError("lend(enabled=False) expects members of an exclusive group")
        group = exclusive(*members)
    group._lend(enabled)
    return group


def _group_of(members: tuple[Member, ...]) -> ExclusiveGroup | None:
    groups: set[ExclusiveGroup | None] = set()
    for member in members:
        if isinstance(member, ExclusiveGroup):
            groups.add(member)
        else:
            found = exclusive_groups.get(pool_of_member(member).handle)
            groups.add(cast("ExclusiveGroup | None", found))
    if len(groups) != 1:
        raise FerroError(
            "lend() expects an exclusive group, or graphs and pools that are all in one or all in "
            f"none: got {len(members)} of {len(groups)}"
        )
    return groups.pop()
