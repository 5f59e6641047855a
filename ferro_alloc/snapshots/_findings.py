"""What would have helped: a trace's replays, compared with the program itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ferro_alloc._status import size_text
from ferro_alloc.sim.cards import CARDS, LIBRARIES, Card
from ferro_alloc.snapshots._replay import Outcome, Run, kept_settings, replay
from ferro_alloc.snapshots._state import State, state_at
from ferro_alloc.snapshots._trace import Allocator, Trace

ALLOCATORS: tuple[Allocator, ...] = ("native", "expandable", "ferro_alloc")
NAMES = {
    "native": "native",
    "expandable": "expandable segments",
    "ferro_alloc": "ferro_alloc",
}
# Settings of the native allocator that are also tried. max_split_size_mb is excluded: on a card
# with plenty of memory it keeps blocks separate, and nothing makes it return them.
TRIED = ("roundup_power2_divisions:8",)
# A saving below this share of the recorded peak does not count.
_WORTH_IT = 0.02


@dataclass(frozen=True)
class Result:
    """One allocator's replay, in bytes."""

    name: str
    run: Run
    outcome: Outcome
    smallest_card: str | None
    """None: it fits on no known card, or the search was not requested."""
    flushes_there: int
    """How often it emptied its cache on that card."""


@dataclass(frozen=True)
class Findings:
    """The findings of one device's trace. `str()` returns them as text."""

    trace: Trace
    recorded_peak: int
    """Maximum bytes that the program held within the trace."""
    peak_active: int
    peak_event: int
    state: State
    """At that peak."""
    results: list[Result]
    """The replays of the three allocators, in the order of `ALLOCATORS`."""
    tried: list[Result]
    unknown: list[str]

    @property
    def own(self) -> Result:
        """The replay under the allocator that recorded the trace."""
        return self.results[ALLOCATORS.index(self.trace.allocator)]

    @property
    def deviation(self) -> float:
        """Deviation of that replay's peak from the recorded one, as a share of it."""
        return self.own.outcome.peak_reserved_bytes / max(self.recorded_peak, 1) - 1

    @property
    def helpful(self) -> list[Result]:
        """The replays that took less memory than the program, the best first."""
        least = self.own.outcome.peak_reserved_bytes - _WORTH_IT * self.recorded_peak
        found = [r for r in (*self.results, *self.tried) if r.outcome.peak_reserved_bytes < least]
        return sorted(found, key=lambda r: r.outcome.peak_reserved_bytes)

    def as_json(self) -> dict[str, Any]:
        """Values for JSON; sizes in bytes."""
        return {
            "device": self.trace.device,
            "allocator": self.trace.allocator,
            "settings": self.trace.settings,
            "events": self.trace.events,
            "seconds": self.trace.seconds,
            "recorded_peak_reserved_bytes": self.recorded_peak,
            "recorded_peak_active_bytes": self.peak_active,
            "replay_of_its_own_deviates": self.deviation,
            "results": [_result_as_json(result) for result in (*self.results, *self.tried)],
            "stranded_bytes": self.state.stranded,
            "cached_bytes": self.state.cached,
            "places": [asdict(place) for place in self.state.places],
            "pins": [asdict(pin) for pin in self.state.pins[:20]],
            "helpful": [result.name for result in self.helpful],
            "unknown": self.unknown,
        }

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._table(), *self._where(), *self._advice()])

    def _head(self) -> list[str]:
        trace = self.trace
        settings = f", {trace.settings}" if trace.settings else ""
        return [
            f"device {trace.device}: {trace.events:,} events in {trace.seconds:.1f} s, recorded "
            f"under {NAMES[trace.allocator]}{settings}",
            f"  peak reserved {size_text(self.recorded_peak)} at event {self.peak_event:,}, "
            f"peak in use {size_text(self.peak_active)}",
            "",
        ]

    def _table(self) -> list[str]:
        lines = [
            f"  {'replayed under':<34} {'peak reserved':>13} {'/ in use':>9}  smallest card",
        ]
        for result in (*self.results, *self.tried):
            peak = result.outcome.peak_reserved_bytes
            card = result.smallest_card or "-"
            if result.flushes_there:
                card += f", where its cache is emptied {result.flushes_there} times"
            mark = " *" if result is self.own else ""
            lines.append(
                f"  {result.name + mark:<34} {size_text(peak):>13} "
                f"{peak / max(result.outcome.peak_active_bytes, 1):>9.3f}  {card}"
            )
        lines.append(
            f"  * recorded under it: the replay's peak differs by {100 * self.deviation:+.1f} %"
        )
        return lines

    def _where(self) -> list[str]:
        state = self.state
        lines = [
            "",
            f"  where the free memory was at the recorded peak: {size_text(state.stranded)} "
            f"stranded beside live blocks, {size_text(state.cached)} in whole units",
        ]
        for place in state.places[:4]:
            lines.append(
                f"    {place.kind} segments of stream {place.stream:#x}: "
                f"{size_text(place.stranded)} stranded, {size_text(place.cached)} cached, of "
                f"{size_text(place.reserved)}"
            )
        if state.pins and state.stranded:
            lines.append("  what keeps the stranded bytes")
        for pin in state.pins[:5] if state.stranded else ():
            lines.append(
                f"    {size_text(pin.stranded_bytes)} by {pin.blocks:,} "
                f"{'block' if pin.blocks == 1 else 'blocks'} of "
                f"{size_text(pin.live_bytes)}: {pin.line}"
            )
        return lines

    def _advice(self) -> list[str]:
        lines = ["", "  what would have helped"]
        for result in self.helpful:
            saved = self.own.outcome.peak_reserved_bytes - result.outcome.peak_reserved_bytes
            share = 100 * saved / max(self.own.outcome.peak_reserved_bytes, 1)
            lines.append(f"    {size_text(saved)} less ({share:.0f} %): {_how_to_set(result)}")
        if not self.helpful:
            lines.append(f"    nothing that was tried saves {100 * _WORTH_IT:.0f} % of the peak")
        return [*lines, *(f"  unknown: {sentence}" for sentence in self.unknown)]


def find(trace: Trace, *, tries: bool = True, cards: bool = True) -> Findings:
    """Replays a trace in four processes of about two seconds, and some more for `cards`."""
    reserved, active = trace.reserved(), trace.active()
    peak = max(reserved)
    event = reserved.index(peak)
    kept = kept_settings(trace.settings)
    runs = [Run(allocator, kept) for allocator in ALLOCATORS]
    wanted = [s for s in TRIED if tries and s.partition(":")[0] not in kept]
    runs += [Run("native", ",".join(filter(None, (kept, setting)))) for setting in wanted]
    outcomes = replay(trace, runs)
    fitting = _smallest_cards(trace, runs[:3], outcomes[:3]) if cards else [(None, 0)] * 3
    names = [NAMES[allocator] for allocator in ALLOCATORS] + [f"native, {s}" for s in wanted]
    results = [
        Result(name, run, outcome, *card)
        for name, run, outcome, card in zip(
            names, runs, outcomes, [*fitting, *[(None, 0)] * len(wanted)], strict=True
        )
    ]
    return Findings(
        trace=trace,
        recorded_peak=peak,
        peak_active=max(active),
        peak_event=event,
        state=state_at(trace, event),
        results=results[:3],
        tried=results[3:],
        unknown=_unknown(trace),
    )


def usable(card: Card) -> int:
    """Bytes of a card that an allocator can use: without the context and kernels of libraries."""
    return card.memory - card.context - LIBRARIES


def _smallest_cards(
    trace: Trace, runs: Sequence[Run], outcomes: Sequence[Outcome]
) -> list[tuple[str | None, int]]:
    """Returns for each run the card, and how often the allocator emptied its cache there.

    An allocator may still fit on a card below its peak, by emptying its cache. Bisection tries
    this, and assumes that a run which fits also fits on larger cards.
    """
    cards = sorted(CARDS, key=usable)
    found: list[tuple[str | None, int]] = []
    for run, outcome in zip(runs, outcomes, strict=True):
        low = bisect_left(cards, outcome.peak_active_bytes, key=usable)
        high = bisect_left(cards, outcome.peak_reserved_bytes, key=usable)
        flushes = 0
        while low < high:
            middle = (low + high) // 2
            (there,) = replay(trace, [Run(run.allocator, run.settings, usable(cards[middle]))])
            if there.fits:
                high, flushes = middle, there.cache_flushes
            else:
                low = middle + 1
        found.append((cards[high].key, flushes) if high < len(cards) else (None, 0))
    return found


def _unknown(trace: Trace) -> list[str]:
    found = []
    if before := trace.born_before:
        found.append(
            f"{before:,} blocks are older than the first event. {NAMES[trace.allocator]} begins "
            "with them where they were, the others with them packed, which flatters these"
        )
    if trace.missing_ends:
        found.append(f"{trace.missing_ends:,} blocks have no free; they count until their reuse")
    waited = sum(
        1 for r, d in zip(trace.blocks.requested, trace.blocks.died, strict=True) if d - r > 1
    )
    if waited:
        found.append(
            f"{waited:,} blocks waited before they were free, as in the recording; an allocator "
            "that lets streams wait instead would need less"
        )
    if trace.emptied:
        found.append(
            f"memory went back to the driver {len(trace.emptied):,} times; every replay empties "
            "its cache at these moments, also where the reason was that memory was short"
        )
    if trace.failures:
        found.append(
            f"{len(trace.failures):,} requests failed for lack of memory, the largest of "
            f"{size_text(max(size for _, size in trace.failures))}; they are in no peak"
        )
    found.append("memory of libraries beside the allocator, and what ran before or after the trace")
    return found


def _result_as_json(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "settings": result.run.settings,
        "peak_reserved_bytes": result.outcome.peak_reserved_bytes,
        "peak_active_bytes": result.outcome.peak_active_bytes,
        "smallest_card": result.smallest_card,
        "cache_flushes_there": result.flushes_there,
    }


def _how_to_set(result: Result) -> str:
    if result.run.allocator == "ferro_alloc":
        return "ferro_alloc: `python -m ferro_alloc run SCRIPT`, or FERRO_ALLOC=1"
    expandable = f"expandable_segments:{result.run.allocator == 'expandable'}"
    return f"PYTORCH_CUDA_ALLOC_CONF={','.join(filter(None, (result.run.settings, expandable)))}"
