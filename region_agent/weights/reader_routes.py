"""Choice of a reader's fastest route to the newest weights: the deltas as signed, one fold of them, or the full state.

The cost of a route is the time until the reader has the weights: bytes over the link, and the time to derive the
publication here unless it was made already. Sending overlaps with deriving, so the cost is the larger of the two plus a
tenth of the smaller (the first and the last part overlap with nothing).

    chain   the deltas from the reader's state on, as the trainer signed them; nothing is derived
    fold    one delta over all of them; it is smaller, because an element that changed twice is sent once; derived from
            the copy on disk
    full    the copy, then the deltas after it; for readers from whose state no delta leads on

Estimates, until a publication was made and its size is known:
- A fold of k deltas has k^-0.25 of their bytes. Source: Adam at lr 1e-6, where folds of 2, 4, 8 and 16 measured 0.87,
  0.74, 0.60 and 0.47 of the sum; the formula gives 0.84, 0.71, 0.59 and 0.50.
- A full copy has `FULL_SHARE` of its content. Source: bf16 weights of trained models under zstandard's first level.

The functions are pure, and know no files, readers or clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FULL_SHARE = 0.8
"""Expected size of a full state relative to its content. Sign and mantissa of bf16 weights do not compress; their
exponents nearly vanish."""

FOLD_EXPONENT = -0.25
"""Exponent of the expected size of a fold; the module's docstring has its source."""


class RouteKind(StrEnum):
    """Route by which a reader gets to the newest state."""

    CHAIN = "chain"
    FOLD = "fold"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRates:
    """Rates of this gateway in bytes per second.

    Defaults: one slow core at the codec's promised speeds, a link of 1 Gbit/s.

    `encode_bytes_per_s` and `decode_bytes_per_s` count bytes of full content.
    """

    link_bytes_per_s: float = 125e6
    encode_bytes_per_s: float = 0.8e9  # of full content
    decode_bytes_per_s: float = 1.2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a gateway could send to one reader. Sizes are in bytes; None marks a route that is not available.

    `chain`: payloads of the deltas from the reader's state to the newest. `num_folded`: how many deltas a fold is
    computed through, including those between the copy and the reader's state. `copy_content`: content of the full
    state. `is_behind_copy`: the reader has no state or an older one than the copy; nobody is sent a state older than
    its own. `after_copy`: payloads of the deltas after the copy. `made_fold`, `made_full`: measured payload of that
    derived publication, once it was made.
    """

    chain: Sequence[int] | None = None
    num_folded: int | None = None
    copy_content: int | None = None
    is_behind_copy: bool = False
    after_copy: Sequence[int] = ()
    made_fold: int | None = None
    made_full: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected bytes and seconds of one route."""

    kind: RouteKind
    num_bytes: int
    seconds: float


def costs(situation: Situation, rates: RouteRates) -> tuple[Cost, ...]:
    """Return the cost of each available route, cheapest first.

    Among equal ones the route that the trainer signed comes first.
    """
    found = []
    if situation.chain is not None:
        # The deltas exist already, so they are only sent.
        found.append(_cost(RouteKind.CHAIN, sum(situation.chain), 0.0, rates))
    if situation.chain and situation.num_folded is not None and situation.copy_content is not None:
        # A fold is decoded through all its deltas and encoded once, unless it was made for an earlier reader.
        make_s = 0.0 if situation.made_fold is not None else _fold_s(situation, rates)
        found.append(_cost(RouteKind.FOLD, situation.made_fold or fold_bytes(situation.chain), make_s, rates))
    if situation.copy_content is not None and situation.is_behind_copy:
        # A full state leads to the copy's version, so the deltas after it are sent too.
        full = situation.made_full or int(FULL_SHARE * situation.copy_content)
        make_s = 0.0 if situation.made_full is not None else situation.copy_content / rates.encode_bytes_per_s
        found.append(_cost(RouteKind.FULL, full + sum(situation.after_copy), make_s, rates))
    return tuple(sorted(found, key=lambda cost: (cost.seconds, list(RouteKind).index(cost.kind))))


def fold_bytes(deltas: Sequence[int]) -> int:
    """Return the expected bytes of one delta over all of these."""
    return int(sum(deltas) * len(deltas) ** FOLD_EXPONENT) if deltas else 0


def _fold_s(situation: Situation, rates: RouteRates) -> float:
    content, num_folded = situation.copy_content or 0, situation.num_folded or 0
    return content / rates.encode_bytes_per_s + num_folded * content / rates.decode_bytes_per_s


def _cost(kind: RouteKind, num_bytes: int, make_s: float, rates: RouteRates) -> Cost:
    send_s = num_bytes / rates.link_bytes_per_s
    return Cost(kind=kind, num_bytes=num_bytes, seconds=max(send_s, make_s) + min(send_s, make_s) / 10)
