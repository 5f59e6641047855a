"""The cards that can be simulated. Needs neither torch nor the simulator.

Memory is the total that the driver reports. Measured figures are exact. The others are the figures
that PyTorch's out-of-memory messages quote for such cards, to 0.01 GiB; they differ by up to 1 %
between versions of the driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferro_alloc._errors import FerroError

_MIB = 1 << 20

LIBRARIES = 152 << 20
"""Bytes that the driver keeps for kernels of PyTorch, cuBLAS and cuDNN besides the context.

Measured on an H100 with torch 2.11: 132 MiB after training in floats, 148 MiB with bfloat16, 152
MiB with convolutions. The largest applies to every card.
"""


@dataclass(frozen=True)
class Architecture:
    """The common properties of cards with one compute capability. Sizes are in bytes."""

    major: int
    minor: int
    threads: int
    """Threads of one multiprocessor."""
    shared_memory: int
    """Shared memory of one multiprocessor."""


@dataclass(frozen=True)
class Speed:
    """From data sheets: GB/s of memory, links to host and peer; teraflops of 16, 32 and 64 bits."""

    memory: float
    half: float
    single: float
    double: float
    host_link: float = 25
    peer_link: float = 25


@dataclass(frozen=True)
class Card:
    """A card. Sizes are in bytes."""

    key: str
    name: str
    """As the driver reports it."""
    memory: int
    architecture: Architecture
    multiprocessors: int
    l2: int
    bus_bits: int
    speed: Speed
    measured_context: int | None = None
    """Bytes that the driver keeps for a context, if measured."""

    @property
    def compute_capability(self) -> str:
        return f"{self.architecture.major}.{self.architecture.minor}"

    @property
    def context(self) -> int:
        """Measured, or estimated: 130 MiB plus an H100's other 489 MiB in proportion to threads."""
        if self.measured_context is not None:
            return self.measured_context
        threads = self.multiprocessors * self.architecture.threads
        return 130 * _MIB + 489 * _MIB * threads // (132 * 2048)

    @property
    def context_source(self) -> str:
        return "measured" if self.measured_context is not None else "estimate"

    def figures(self) -> str:
        """Returns them in the form of the simulator's setting `card`."""
        a, s = self.architecture, self.speed
        fields = (
            *(self.key, self.name.replace(" ", "_"), self.memory, self.context, a.major, a.minor),
            *(self.multiprocessors, a.threads, a.shared_memory, self.l2, self.bus_bits, s.memory),
            *(s.host_link, s.peer_link, s.half, s.single, s.double),
        )
        return ":".join(map(str, fields))


_ARCHITECTURES = {
    "Volta": Architecture(7, 0, 2048, 96 << 10),
    "Turing": Architecture(7, 5, 1024, 64 << 10),
    "A100": Architecture(8, 0, 2048, 164 << 10),
    "Ampere": Architecture(8, 6, 1536, 100 << 10),
    "Ada": Architecture(8, 9, 1536, 100 << 10),
    "Hopper": Architecture(9, 0, 2048, 228 << 10),
    "B200": Architecture(10, 0, 2048, 228 << 10),
    "Blackwell": Architecture(12, 0, 1536, 100 << 10),
}

# Key, name, memory in GiB, architecture, multiprocessors, L2 in MiB, bits of the memory's bus; GB/s
# of memory, teraflops of 16, 32 and 64 bits; where it has one, GB/s to the host and to a peer.
_TABLE = """
rtx-3060      |GeForce RTX 3060       | 11.76|Ampere   | 28|  3| 192|360 51 13 0.2
rtx-3060-ti   |GeForce RTX 3060 Ti    |  7.79|Ampere   | 38|  4| 256|448 65 16 0.3
rtx-3070      |GeForce RTX 3070       |  7.79|Ampere   | 46|  4| 256|448 81 20 0.3
rtx-3080      |GeForce RTX 3080       |  9.78|Ampere   | 68|  5| 320|760 119 30 0.5
rtx-3080-ti   |GeForce RTX 3080 Ti    | 11.77|Ampere   | 80|  6| 384|912 136 34 0.5
rtx-3090      |GeForce RTX 3090       | 23.69|Ampere   | 82|  6| 384|936 142 36 0.6
rtx-4060      |GeForce RTX 4060       |  7.75|Ada      | 24| 24| 128|272 60 15 0.2
rtx-4060-ti-16|GeForce RTX 4060 Ti    | 15.70|Ada      | 34| 32| 128|288 88 22 0.3
rtx-4070      |GeForce RTX 4070       | 11.72|Ada      | 46| 36| 192|504 117 29 0.5
rtx-4070-ti   |GeForce RTX 4070 Ti    | 11.72|Ada      | 60| 48| 192|504 160 40 0.6
rtx-4080      |GeForce RTX 4080       | 15.70|Ada      | 76| 64| 256|717 195 49 0.8
rtx-4090      |GeForce RTX 4090       | 23.52|Ada      |128| 72| 384|1008 165 83 1.3
rtx-5060-ti-16|GeForce RTX 5060 Ti    | 15.48|Blackwell| 36| 32| 128|448 95 24 0.4
rtx-5070      |GeForce RTX 5070       | 11.50|Blackwell| 48| 48| 192|672 123 31 0.5
rtx-5070-ti   |GeForce RTX 5070 Ti    | 15.47|Blackwell| 70| 48| 256|896 176 44 0.7
rtx-5080      |GeForce RTX 5080       | 15.47|Blackwell| 84| 64| 256|960 225 56 0.9
rtx-5090      |GeForce RTX 5090       | 31.36|Blackwell|170| 96| 512|1792 419 105 1.6
a5000         |RTX A5000              | 23.68|Ampere   | 64|  6| 384|768 111 28 0.4
a6000         |RTX A6000              | 47.53|Ampere   | 84|  6| 384|768 155 39 0.6
rtx-6000-ada  |RTX 6000 Ada Generation| 47.50|Ada      |142| 96| 384|960 364 91 1.4
rtx-pro-6000  |RTX PRO 6000 Blackwell | 94.97|Blackwell|188|128| 512|1792 504 126 2.0
t4            |Tesla T4               | 14.74|Turing   | 40|  4| 256|320 65 8 0.3 12 12
v100-16       |Tesla V100-SXM2-16GB   | 15.78|Volta    | 80|  6|4096|900 125 16 7.8 12 125
v100-32       |Tesla V100-SXM2-32GB   | 31.75|Volta    | 80|  6|4096|900 125 16 7.8 12 125
a10           |A10                    | 21.99|Ampere   | 72|  6| 384|600 125 31 0.5
a30           |A30                    | 23.50|A100     | 56| 24|3072|933 165 10 5.2
a40           |A40                    | 44.35|Ampere   | 84|  6| 384|696 150 37 0.6
a100-40       |A100-SXM4-40GB         | 39.38|A100     |108| 40|5120|1555 312 19.5 19.5 25 250
a100-80       |A100-SXM4-80GB         | 79.14|A100     |108| 40|5120|2039 312 19.5 19.5 25 250
l4            |L4                     | 21.95|Ada      | 58| 48| 192|300 121 30 0.5
l40s          |L40S                   | 44.40|Ada      |142| 96| 384|864 362 92 1.4
h100          |H100 80GB HBM3         | 79.18|Hopper   |132| 50|5120|3350 989 67 67 55 375
h200          |H200                   |139.80|Hopper   |132| 60|6144|4800 989 67 67 55 375
b200          |B200                   |178.36|B200     |148|126|8192|8000 2250 75 37 55 750
"""

# Measured on such a card with driver 580.159: total memory, and the memory of a context with its
# first kernel, in bytes.
_MEASURED = {"h100": (85017493504, 648871936), "h200": (150109880320, 552402944)}

# Other common names of some cards.
_ALIASES = {"a100": "a100-80", "v100": "v100-16", "rtx-a5000": "a5000", "rtx-a6000": "a6000"}


def _card(row: str) -> Card:
    key, name, gib, architecture, count, l2, bus, speed = map(str.strip, row.split("|"))
    memory, context = _MEASURED.get(key, (round(float(gib) * 1024) * _MIB, None))
    return Card(
        key=key,
        name=name if name.startswith("Tesla") else f"NVIDIA {name}",
        memory=memory,
        architecture=_ARCHITECTURES[architecture],
        multiprocessors=int(count),
        l2=int(l2) * _MIB,
        bus_bits=int(bus),
        speed=Speed(*map(float, speed.split())),
        measured_context=context,
    )


CARDS: tuple[Card, ...] = tuple(map(_card, _TABLE.strip().splitlines()))


def plain_name(name: str) -> str:
    """Removes parts with many spellings: case, blanks, hyphens, words of the maker."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"nvidia|geforce|tesla|rtx(?=\d)|gb$|sxm\d|hbm\d\w?", "", letters)


def _names() -> dict[str, Card]:
    by_key = {card.key: card for card in CARDS}
    known = {plain_name(card.name): card for card in reversed(CARDS)}
    known |= {plain_name(key): card for key, card in by_key.items()}
    return known | {plain_name(alias): by_key[key] for alias, key in _ALIASES.items()}


def find_card(name: str) -> Card:
    """Finds a card by its key, or in other spellings: `RTX 4090`, `rtx4090`, `H100`, `L40S`.

    Raises `FerroError` with the nearest names and the list for an unknown one.
    """
    known = _names()
    if card := known.get(plain_name(name)):
        return card
    import difflib  # here, because only a refusal needs it

    near = difflib.get_close_matches(plain_name(name), known, n=3, cutoff=0.5)
    keys = list(dict.fromkeys(known[match].key for match in near))
    guess = f"; the nearest: {', '.join(keys)}" if keys else ""
    every = ", ".join(card.key for card in CARDS)
    raise FerroError(f"there is no card '{name}'{guess}. The cards are {every}")


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)(b?)|b)", re.IGNORECASE)
SIZE_FORMS = "24GiB or 24g (2**30 bytes), 24GB (10**9 bytes), 24576MiB, or bytes as in 25769803776b"


def parse_size(text: str, what: str = "size") -> int:
    """Bytes of `24GiB`, `24g`, `24gi` (2**30 each), `24GB` (10**9 each), and so on with K, M, T.

    Raises `FerroError` with the valid forms for any other text, such as a number without a unit.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise FerroError(f"the {what} '{text}' has no unit or is no size: expected {SIZE_FORMS}")
    number, unit, binary, b = found.groups()
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    base = 1000 if b and not binary else 1024
    return int(float(number) * float(base**power))


def parse_memory(text: str) -> int:
    """The same for the memory of a card, which has at least one page."""
    size = parse_size(text, "memory")
    if size < 2 * _MIB:
        raise FerroError(f"the memory '{text}' is less than a page of 2 MiB: expected {SIZE_FORMS}")
    return size
