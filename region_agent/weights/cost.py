"""Which way leads a reader to the newest weights soonest: the chain of deltas, one fold of them, or the full copy.

A way's cost is the time until the reader has it: bytes over the link, plus the time that making it takes here, unless
it is made already. Sending overlaps making, so the larger of the two counts, and a tenth of the smaller (the first
and the last part overlap nothing).

    chain   the deltas from what the reader has, as the trainer signed them: nothing to make
    fold    one delta over all of them: smaller, since what changed twice is sent once; made from the copy
    full    the copy, then the deltas after it: for readers from whose state no delta leads on

Estimates, until something was made and is known:
- a fold of k deltas has k^-0.25 of their bytes. Source: Adam at lr 1e-6, folds of 2, 4, 8, 16 measured at 0.87, 0.74,
  0.60 and 0.47 of the sum; the formula gives 0.84, 0.71, 0.59 and 0.50.
- a full copy has `FULL_SHARE` of its content. Source: bf16 weights of trained models under zstandard's first level.

Pure; refuses to know files, readers and clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FULL_SHARE = 0.8
"""Of a full state's bytes: sign and mantissa of bf16 weights do not compress, their exponents nearly vanish."""

FOLD_EXPONENT = -0.25
"""See the module's estimates."""


class Way(StrEnum):
    """How a reader gets to the newest state."""

    CHAIN = "chain"
    FOLD = "fold"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of this gateway. Defaults: one slow core at the codec's promised speeds, and a link of 1 Gbit/s."""

    link_bytes_per_s: float = 125e6
    encode_bytes_per_s: float = 0.8e9  # of full content
    decode_bytes_per_s: float = 1.2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a gateway could send to one reader. Sizes in bytes; `None` where that way is closed.

    `chain`: payloads of the deltas from the reader's state to the newest. `num_folded`: how many deltas a fold is made
    through, those between the copy and the reader's state included. `copy_content`: of the full state.
    `is_behind_copy`: the reader's state is older, or it has none: nobody is sent a state older than its own.
    `after_copy`: payloads of the deltas behind the copy. `made_*`: what such a way measures, once it was made.
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
    """Of one way."""

    way: Way
    num_bytes: int
    seconds: float


def costs(situation: Situation, rates: Rates) -> tuple[Cost, ...]:
    """Of each way that is open, cheapest first; of equal ones the one that the trainer signed."""
    found = []
    if situation.chain is not None:
        found.append(_cost(Way.CHAIN, sum(situation.chain), 0.0, rates))
    if situation.chain and situation.num_folded is not None and situation.copy_content is not None:
        make_s = 0.0 if situation.made_fold is not None else _fold_s(situation, rates)
        found.append(_cost(Way.FOLD, situation.made_fold or fold_bytes(situation.chain), make_s, rates))
    if situation.copy_content is not None and situation.is_behind_copy:
        full = situation.made_full or int(FULL_SHARE * situation.copy_content)
        make_s = 0.0 if situation.made_full is not None else situation.copy_content / rates.encode_bytes_per_s
        found.append(_cost(Way.FULL, full + sum(situation.after_copy), make_s, rates))
    return tuple(sorted(found, key=lambda cost: (cost.seconds, list(Way).index(cost.way))))


def fold_bytes(deltas: Sequence[int]) -> int:
    """Of one delta over all of these, estimated."""
    return int(sum(deltas) * len(deltas) ** FOLD_EXPONENT) if deltas else 0


def _fold_s(situation: Situation, rates: Rates) -> float:
    content, num_folded = situation.copy_content or 0, situation.num_folded or 0
    return content / rates.encode_bytes_per_s + num_folded * content / rates.decode_bytes_per_s


def _cost(way: Way, num_bytes: int, make_s: float, rates: Rates) -> Cost:
    send_s = num_bytes / rates.link_bytes_per_s
    return Cost(way=way, num_bytes=num_bytes, seconds=max(send_s, make_s) + min(send_s, make_s) / 10)
