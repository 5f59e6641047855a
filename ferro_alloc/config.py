"""The settings of the allocator; every setting has a default."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar, Literal, Self, get_args

ENVIRONMENT_VARIABLE = "FERRO_ALLOC_CONF"
_MIB = 1 << 20

Layout = Literal["pages", "segments"]
GraphOrder = Literal["captured", "any"]

# Settings of earlier versions: accepted, and without effect.
REMOVED = ("background_unmap", "move_live")


@dataclass(frozen=True)
class Config:
    """Settings, checked on construction. Sizes are in MiB.

    Raises `ValueError` for an invalid value, and `TypeError` for a wrong type or another setting.
    """

    page_size_mb: int = 2
    """Size of a physical page, a power of two. Larger pages are cheaper to map and strand more."""
    memory_limit_mb: int | None = None
    """Maximum memory that the allocator may hold on each device; None: the whole card."""
    in_flight_percent: int | None = 30
    """How far held memory may exceed the peak of live memory, in percent of that peak, before a
    stream waits for memory that other streams still use; None: no stream waits while memory is
    available."""
    headroom_mb: int = 0
    """Memory of each device that stays free for other programs and libraries."""
    idle_mb: int = 0
    """Free memory of each device that `empty_cache()` keeps for later requests instead of
    returning it to the driver; with pages only."""
    layout: Layout = "pages"
    """Pages, which move to where they are needed, or segments: PyTorch's own allocator serves all
    memory."""
    graph_layout: Layout = "pages"
    """Layout of the pools into which CUDA graphs are captured. With segments they come from
    PyTorch's own allocator: plain allocations of the driver, which programs may pass to
    `cudaIpcGetMemHandle`; all other memory keeps its pages."""
    graph_order: GraphOrder = "captured"
    """Order in which graphs that share a pool may replay without overwriting each other's results:
    that of their captures, as under PyTorch's allocator, or any, which takes more memory. Pools in
    an exclusive group need no setting."""
    graph_debug: bool = False
    """Whether the debug mode of graphs (`graphs.debug()`) is on from `install()`, once CUDA is
    initialised, to `uninstall()`."""
    _: KW_ONLY
    background_unmap: InitVar[object] = None
    move_live: InitVar[object] = None

    _without_effect: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *_values: object, **settings: object) -> Self:
        for key in settings:
            _check_known(key, TypeError)
        return super().__new__(cls)

    def __post_init__(self, *removed: object) -> None:
        given = zip(REMOVED, removed, strict=True)
        named = tuple(f"{key}:{_text_of(value)}" for key, value in given if value is not None)
        object.__setattr__(self, "_without_effect", named)
        _check_size("page_size_mb", self.page_size_mb)
        if self.page_size_mb & (self.page_size_mb - 1) != 0:
            raise ValueError(_refusal("page_size_mb", self.page_size_mb))
        for key in ("memory_limit_mb", "in_flight_percent"):
            if getattr(self, key) is not None:
                _check_size(key, getattr(self, key))
        for key in ("headroom_mb", "idle_mb"):
            _check_size(key, getattr(self, key))
        if self.memory_limit_mb is not None and self.memory_limit_mb < self.page_size_mb:
            raise ValueError(
                f"memory_limit_mb is {self.memory_limit_mb} and page_size_mb is "
                f"{self.page_size_mb}: expected a limit of at least one page"
            )
        for key in _SWITCHES:
            if not isinstance(value := getattr(self, key), bool):
                raise TypeError(_refusal(key, value))
        for key, names in _NAMES.items():
            if not isinstance(value := getattr(self, key), str):
                raise TypeError(_refusal(key, value))
            if value not in names:
                raise ValueError(_refusal(key, value))

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
        """The settings in FERRO_ALLOC_CONF, as in `page_size_mb:2,memory_limit_mb:4096`.

        Raises `ValueError`, which begins with the variable's name.
        """
        text = (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE, "")
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{ENVIRONMENT_VARIABLE}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Config:
        """Settings from comma-separated `key:value` pairs; absent settings have their default.

        Raises `ValueError` for anything else.
        """
        values: dict[str, bool | int | str | None] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, separator, value = (part.strip() for part in pair.partition(":"))
            if not separator:
                raise ValueError(
                    f"{_shown(pair)} is not of the form key:value, as in page_size_mb:2"
                )
            _check_known(key, ValueError)
            if key in values:
                raise ValueError(f"'{key}' is given twice, as {values[key]} and as {_shown(value)}")
            values[key] = _parse_value(key, value)
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each value

    def __str__(self) -> str:
        pairs = ((option.name, getattr(self, option.name)) for option in dataclasses.fields(self))
        return ",".join(f"{key}:{_text_of(value)}" for key, value in pairs)


def without_effect(config: Config) -> tuple[str, ...]:
    """The removed settings that were given, as `key:value`."""
    return config._without_effect


def differences(config: Config, other: Config) -> str:
    """Lists the differences as in `page_size_mb:4, not 8`; empty for equal settings."""
    pairs = (
        (option.name, getattr(config, option.name), getattr(other, option.name))
        for option in dataclasses.fields(Config)
    )
    return ", ".join(f"{key}:{_text_of(a)}, not {_text_of(b)}" for key, a, b in pairs if a != b)


# Bounds of the numeric settings. A page of more than 1 GiB, or a size of a petabyte, is a mistake
# in the unit.
_MAX_MB = 1 << 30
_BOUNDS = {
    "page_size_mb": (2, 1024),
    "memory_limit_mb": (2, _MAX_MB),
    "in_flight_percent": (0, 1_000_000),
    "headroom_mb": (0, _MAX_MB),
    "idle_mb": (0, _MAX_MB),
}
_FORMS = {
    "page_size_mb": "a power of two in MiB from 2 to 1024, as in page_size_mb:2",
    "memory_limit_mb": f"none or a whole number of MiB from 2 to {_MAX_MB}, as in "
    "memory_limit_mb:4096",
    "in_flight_percent": "none or a whole number from 0 to 1000000, as in in_flight_percent:30",
    "headroom_mb": f"a whole number of MiB from 0 to {_MAX_MB}, as in headroom_mb:512",
    "idle_mb": f"a whole number of MiB from 0 to {_MAX_MB}, as in idle_mb:512",
    "layout": "pages or segments, as in layout:pages",
    "graph_layout": "pages or segments, as in graph_layout:segments",
    "graph_order": "captured or any, as in graph_order:any",
    "graph_debug": "true or false, as in graph_debug:true",
}
_SWITCHES = ("graph_debug",)
_NAMES = {
    "layout": get_args(Layout),
    "graph_layout": get_args(Layout),
    "graph_order": get_args(GraphOrder),
}


def _text_of(value: object) -> str:
    return "none" if value is None else str(value).lower()


def _parse_value(key: str, value: str) -> bool | int | str | None:
    if key in _NAMES or key in REMOVED:
        return value
    if key in _SWITCHES:
        if value.lower() not in ("true", "false"):
            raise ValueError(_refusal(key, value))
        return value.lower() == "true"
    if value.lower() == "none" and key in ("memory_limit_mb", "in_flight_percent"):
        return None
    # Only ASCII digits, and no more of them than any setting has.
    if re.fullmatch(r"[+-]?[0-9]{1,18}", value) is None:
        raise ValueError(_refusal(key, value))
    return int(value)


def _check_known(key: str, error: type[TypeError | ValueError]) -> None:
    if key not in _FORMS and key not in REMOVED:
        raise error(f"{_shown(key)} is not an option of ferro_alloc: expected {', '.join(_FORMS)}")


def _check_size(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(_refusal(key, value))
    least, most = _BOUNDS[key]
    if not least <= value <= most:
        raise ValueError(_refusal(key, value))


def _refusal(key: str, value: object) -> str:
    return f"{key} is {_shown(value)}: expected {_FORMS[key]}"


def _shown(value: object) -> str:
    """One line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
