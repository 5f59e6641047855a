"""The settings of the allocator: few, and each with a default that suits."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ferro_alloc._errors import FerroError

ENVIRONMENT_VARIABLE = "FERRO_ALLOC_CONF"
_MIB = 1 << 20

Layout = Literal["pages", "segments"]


@dataclass(frozen=True)
class Config:
    """Settings, checked when made. Sizes are in MiB."""

    page_size_mb: int = field(
        default=2,
        metadata={
            "meaning": "size of a physical page in MiB, a power of two of at least 2; larger pages "
            "are cheaper to map and strand more memory"
        },
    )
    memory_limit_mb: int | None = field(
        default=None,
        metadata={
            "meaning": "most memory in MiB that the allocator may hold on each device; none means "
            "the whole card"
        },
    )

    in_flight_percent: int | None = field(
        default=30,
        metadata={
            "meaning": "how much more than the peak of live memory may be held, in percent of that "
            "peak, before a stream waits for memory that other streams still use; none: it never "
            "waits while there is memory"
        },
    )

    headroom_mb: int = field(
        default=0,
        metadata={
            "meaning": "memory in MiB of each device that is left free for other programs and "
            "libraries"
        },
    )

    idle_mb: int = field(
        default=0,
        metadata={
            "meaning": "free memory in MiB of each device that empty_cache() keeps for later "
            "requests instead of returning it to the driver; with pages only"
        },
    )

    layout: Layout = field(
        default="pages",
        metadata={
            "meaning": "how memory is laid out: pages, which move to where they are needed, or "
            "segments, which stay as the driver gave them"
        },
    )

    background_unmap: bool = field(
        default=False,
        metadata={
            "meaning": "true: a thread of the allocator's own removes old mappings, which requests "
            "do otherwise; with pages only, and not where a process must have no such threads"
        },
    )

    move_live: bool = field(
        default=False,
        metadata={
            "meaning": "true: before a request fails, live memory that keeps free pages from use "
            "moves to other pages, at the same addresses; only for programs in which no other "
            "thread gives a device work while one thread waits for memory of it; with pages only"
        },
    )

    def __post_init__(self) -> None:
        page, limit = self.page_size_mb, self.memory_limit_mb
        if self.layout not in get_args(Layout):
            raise _bad("layout", self.layout, "expected pages or segments")
        if not _is_int(page) or page < 2 or page & (page - 1) != 0:
            raise _bad("page_size_mb", page, "expected a power of two of at least 2")
        share = self.in_flight_percent
        if share is not None and (not _is_int(share) or share < 0):
            raise _bad("in_flight_percent", share, "expected none or a whole number of at least 0")
        if limit is not None and (not _is_int(limit) or limit < page):
            raise _bad("memory_limit_mb", limit, f"expected none or at least one page ({page})")
        for key in ("headroom_mb", "idle_mb"):
            if not _is_int(value := getattr(self, key)) or value < 0:
                raise _bad(key, value, "expected a whole number of at least 0")
        for key in ("background_unmap", "move_live"):
            if not isinstance(value := getattr(self, key), bool):
                raise _bad(key, value, "expected true or false")

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_mb * _MIB

    @property
    def memory_limit_bytes(self) -> int:
        """0 means no limit."""
        return 0 if self.memory_limit_mb is None else self.memory_limit_mb * _MIB

    @property
    def headroom_bytes(self) -> int:
        return self.headroom_mb * _MIB

    @property
    def idle_bytes(self) -> int:
        return self.idle_mb * _MIB

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """The settings in FERRO_ALLOC_CONF, as in `page_size_mb:2,memory_limit_mb:4096`."""
        text = (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE, "")
        return cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> Config:
        """Settings from `key:value` pairs parted by commas; what is absent has its default."""
        values: dict[str, bool | int | str | None] = {}
        known = {option.name for option in dataclasses.fields(cls)}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, separator, value = (part.strip() for part in pair.partition(":"))
            if not separator:
                raise FerroError(f"'{pair}' in '{text}' is not of the form key:value. {describe()}")
            if key not in known:
                raise FerroError(f"'{key}' is no option of ferro_alloc. {describe()}")
            if key in values:
                raise FerroError(f"'{key}' is given twice in '{text}'")
            values[key] = _parse_value(key, value)
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each value

    def __str__(self) -> str:
        pairs = ((option.name, getattr(self, option.name)) for option in dataclasses.fields(self))
        return ",".join(f"{key}:{_text_of(value)}" for key, value in pairs)


def describe() -> str:
    """All options in one line: name, default, and meaning."""
    lines = []
    for option in dataclasses.fields(Config):
        default = _text_of(option.default)
        lines.append(f"{option.name} (default {default}): {option.metadata['meaning']}")
    return "Options are " + "; ".join(lines)


def _text_of(value: object) -> str:
    return "none" if value is None else str(value).lower()


def _parse_value(key: str, value: str) -> bool | int | str | None:
    if key == "layout":
        return value
    if key in ("background_unmap", "move_live"):
        return {"true": True, "false": False}.get(value.lower(), value)
    if value.lower() == "none":
        return None
    try:
        return int(value)
    except ValueError:
        raise _bad(key, value, "expected a whole number") from None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(key: str, value: object, expected: str) -> FerroError:
    return FerroError(f"{key} is {value!r}: {expected}. {describe()}")
