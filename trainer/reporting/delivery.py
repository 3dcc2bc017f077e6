"""Versions on their way: what one cost to send, and what readers say of those that they hold. Pure values; whether a
digest is the right one is the publisher's to say.

Times and differences in proofs come from other machines: a number that is negative or not finite counts as nothing.
"""

from dataclasses import dataclass
from math import isfinite

from periplus.values.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A publication that was handed to the gateway. Elements are counted for a delta only; `snapshot_s`: training stood
    still; `encode_s`: in the encoder; `publish_s`: from the snapshot's start to the closing."""

    is_delta: bool
    payload_bytes: int
    content_bytes: int
    num_elements: int
    num_changed: int
    snapshot_s: float
    encode_s: float
    publish_s: float

    def values(self) -> dict[str, float]:
        """Return the figures under the names of the metric registry."""
        values = {
            "delta_bytes": float(self.payload_bytes),
            "full_weights_bytes": float(self.content_bytes),
            "snapshot_s": self.snapshot_s,
            "encode_s": self.encode_s,
            "publish_s": self.publish_s,
        }
        if self.is_delta and self.num_elements:
            values["delta_density"] = self.num_changed / self.num_elements
        if self.is_delta and self.num_changed:
            values["delta_bits_per_change"] = 8 * self.payload_bytes / self.num_changed
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderProof:
    """One version at one reader, as it reports it. `engine_checked`: the engine's own tensors were hashed, and the
    probe was run; `fallback`: it came as a full state or a fold."""

    policy: Policy
    digest: bytes
    ok: bool
    why: str
    engine_checked: bool
    fallback: bool
    probe_max_difference: float
    transfer_s: float
    apply_s: float
    pause_s: float


@dataclass(slots=True)
class ProofTally:
    """Proofs of all readers since the tally was last taken."""

    proofs: int = 0
    fallbacks: int = 0
    checks: int = 0
    probe_max_difference: float = 0.0
    transfer_s: float = 0.0
    apply_s: float = 0.0
    pause_s: float = 0.0

    def add(self, proof: ReaderProof) -> None:
        """One more."""
        self.proofs += proof.ok
        self.fallbacks += proof.fallback
        self.checks += proof.engine_checked
        self.probe_max_difference = larger(self.probe_max_difference, proof.probe_max_difference)
        self.transfer_s = larger(self.transfer_s, proof.transfer_s)
        self.apply_s = larger(self.apply_s, proof.apply_s)
        self.pause_s = larger(self.pause_s, proof.pause_s)

    def values(self) -> dict[str, float]:
        """Return the figures under the names of the metric registry; times and differences only where measured."""
        values = {
            "weight_proofs": float(self.proofs),
            "weight_fallbacks": float(self.fallbacks),
            "weight_checks": float(self.checks),
        }
        if self.proofs:
            values |= {"transfer_s": self.transfer_s, "apply_s": self.apply_s, "pause_s": self.pause_s}
        if self.checks:
            values["probe_max_difference"] = self.probe_max_difference
        return values


def larger(known: float, found: float) -> float:
    """The larger of two numbers, of which the second may be none."""
    return max(known, found) if isfinite(found) else known
