"""What one delta takes: exact first, then its bytes beside entropy floors, other layouts and full copies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard

from bench.weight_deltas.peers import peers
from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.floors import floors
from periplus.values.digest import state_digest
from periplus.values.weight_state import WeightState, content_bytes

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Versions one step apart, and between which of them deltas are measured."""

    name: str
    read: Callable[[int], WeightState]
    singles: tuple[tuple[int, int], ...]
    folds: tuple[tuple[int, int], ...]


def checked_parts(base: WeightState, new: WeightState) -> list[bytes]:
    """The delta, after it was decoded and compared."""
    parts = encode(base, new)
    back = decode(base, parts, max_content_bytes=content_bytes(new))
    assert state_digest(back) == state_digest(new), "what came back is not what went in"
    return parts


def sizes(name: str, base: WeightState, new: WeightState, say: Say, *, with_peers: bool = True) -> Row:
    """One delta's figures; `*_bits` and the peers' are bits a changed element, `vs_*` are ratios of all its bits."""
    parts, floor = checked_parts(base, new), floors(base, new)
    payload_bytes, changed = sum(map(len, parts)), floor.num_changed
    bits = 8 * payload_bytes
    row: Row = {
        "delta": name,
        "density": changed / floor.num_elements,
        "payload_bytes": payload_bytes,
        "bits_per_change": bits / changed,
        "iid_floor_bits": floor.iid_bits / changed,
        "conditional_floor_bits": floor.conditional_bits / changed,
        "conditional_with_tables_floor_bits": floor.conditional_with_tables_bits / changed,
        "vs_iid": bits / floor.iid_bits,
        "vs_conditional": bits / floor.conditional_bits,
        "vs_conditional_with_tables": bits / floor.conditional_with_tables_bits,
        "vs_step_entropy": bits / floor.step_entropy_bits,
        "vs_zstd1_full_copy": payload_bytes / full_copy_bytes(new),
        "ratio_to_bf16": content_bytes(new) / payload_bytes,
    }
    if with_peers:
        row["peers_bits_per_change"] = {peer: 8 * size / changed for peer, size in peer_bytes(base, new).items()}
    say(line(row))
    return row


HEADER = (
    f"{'delta':<44} {'changed':>8} {'bits':>6} {'cond.':>6} {'tables':>6} {'iid':>6} {'copy':>6}  layouts of others"
)


def line(row: Row) -> str:
    """A row of the table under HEADER."""
    ratios = (row[f"vs_{name}"] for name in ("conditional", "conditional_with_tables", "iid", "zstd1_full_copy"))
    others = " ".join(f"{size:5.1f}" for size in row.get("peers_bits_per_change", {}).values())
    figures = " ".join(f"{ratio:>6.3f}" for ratio in ratios)
    return f"{row['delta']:<44} {row['density']:>8.3%} {row['bits_per_change']:>6.2f} {figures}  {others}"


def peer_bytes(base: WeightState, new: WeightState) -> dict[str, int]:
    """Each layout's payload, after it was decoded and compared."""
    found = {}
    for peer in peers():
        payload = peer.encode(base, new)
        assert state_digest(peer.decode(base, payload)) == state_digest(new), f"{peer.name} is not exact"
        found[peer.name] = len(payload)
    return found


def full_copy_bytes(state: WeightState) -> int:
    """zstd-1 of the whole state: of its bytes as they are, or of its low bytes and its high bytes, what is smaller."""
    raw = np.concatenate([tensor.data for tensor in state.values()])
    planes = np.concatenate([raw[::2], raw[1::2]])
    return min(len(zstandard.ZstdCompressor(level=1).compress(one.tobytes())) for one in (raw, planes))


def fold(chain: Chain, first: int, last: int) -> Row:
    """The delta over several steps, beside the deltas of each step."""
    start = state = chain.read(first)
    sum_bytes = 0
    for _, version in pairwise(range(first, last + 1)):
        new = chain.read(version)
        parts = encode(state, new)
        sum_bytes += sum(map(len, parts))
        state = decode(state, parts, max_content_bytes=content_bytes(new))
    parts = encode(start, state)
    folded = decode(start, parts, max_content_bytes=content_bytes(start))
    return {
        "fold": f"{chain.name} {first}->{last}",
        "exact": state_digest(folded) == state_digest(state) == state_digest(chain.read(last)),
        "bytes": sum(map(len, parts)),
        "sum_bytes": sum_bytes,
        "size_vs_sum": sum(map(len, parts)) / sum_bytes,
    }


def of_chains(chains: Iterable[Chain], say: Say) -> tuple[list[Row], list[Row]]:
    """Sizes of all deltas of the chains, and of their folds beside the sums."""
    rows, folds = [], []
    for chain in chains:
        for first, last in (*chain.singles, *chain.folds):
            rows.append(sizes(f"{chain.name} {first}->{last}", chain.read(first), chain.read(last), say))
        folds += [fold(chain, first, last) for first, last in chain.folds]
    return rows, folds
