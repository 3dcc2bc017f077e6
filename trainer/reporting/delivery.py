"""Figures about the delivery of versions: what a publication cost, and what readers report about versions they hold.

A *reader* is a worker that holds a copy of the weights. Its *proof* says which version it holds, with what digest, and
how long it took to get there. This module holds values and adds them up. It does not compare digests, which is the
publisher's task (trainer/publishing/publisher.py).

Times and differences in proofs come from other machines and are not trusted: a number that is negative or not finite is
ignored.
"""

from dataclasses import dataclass, field
from math import isfinite

from periplus.process.telemetry import REGION_WEIGHTS_S
from periplus.values.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Figures of a publication of weights whose records were all handed to the gateway.

    - `payload_bytes`: encoded size. `content_bytes`: size of the full bfloat16 state.
    - `num_elements`, `num_changed`: elements of the state, and those that differ from the base. In a full state all
      elements count as changed, and no metric is made of them.
    - `snapshot_s`: time for which training waited. `encode_s`: time spent in the encoder.
    - `publish_s`: time from the start of the snapshot until the closing was handed over.
    """

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
        # Shares of what changed exist only for a delta.
        if self.is_delta and self.num_elements:
            values["delta_density"] = self.num_changed / self.num_elements
        if self.is_delta and self.num_changed:
            values["delta_bits_per_change"] = 8 * self.payload_bytes / self.num_changed
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderProof:
    """Report of one reader about one version that it holds.

    - `digest`: digest of the reader's copy. `ok`: whether the reader itself found the copy right, and `why` not.
    - `engine_checked`: whether the engine's own tensors were hashed and the fixed prompts were run.
    - `fallback`: whether the version came as a full state, or as several deltas folded into one.
    - `probe_mean_difference`, `probe_max_difference`: mean and largest difference of log-probabilities on the fixed
      prompts, in nats.
    - `transfer_s`: time from opening to closing. `apply_s`: time to decode into the copy in host memory.
    - `pause_s`: time for which generation stood still.
    - `generation_s`: time since the reader's process began in which its engine had a request under way.
    """

    policy: Policy
    digest: bytes
    ok: bool
    why: str
    engine_checked: bool
    fallback: bool
    probe_mean_difference: float
    probe_max_difference: float
    transfer_s: float
    apply_s: float
    pause_s: float
    generation_s: float


@dataclass(slots=True)
class ProofTally:
    """Counts and maxima over the proofs of all readers since the last step was recorded."""

    proofs: int = 0
    fallbacks: int = 0
    checks: int = 0
    probe_mean_difference: float = 0.0
    probe_max_difference: float = 0.0
    transfer_s: float = 0.0
    apply_s: float = 0.0
    pause_s: float = 0.0
    weights_s: dict[str, float] = field(default_factory=dict)

    def add(self, proof: ReaderProof, region: str | None, held_after_s: float | None) -> None:
        """Add a reader's report about a version of the weights that it holds.

        `region` is the reader's, and `held_after_s` the time since the end of the training step that made the version;
        either is None if it is not known.
        """
        if proof.ok and region and held_after_s is not None:
            self.weights_s[region] = max(self.weights_s.get(region, 0.0), held_after_s)
        self.proofs += proof.ok
        self.fallbacks += proof.fallback
        self.checks += proof.engine_checked
        self.probe_mean_difference = larger(self.probe_mean_difference, proof.probe_mean_difference)
        self.probe_max_difference = larger(self.probe_max_difference, proof.probe_max_difference)
        self.transfer_s = larger(self.transfer_s, proof.transfer_s)
        self.apply_s = larger(self.apply_s, proof.apply_s)
        self.pause_s = larger(self.pause_s, proof.pause_s)

    def values(self) -> dict[str, float]:
        """Return the figures under the names of the metric registry.

        Times are left out if there was no valid proof, the difference if no engine was checked.
        """
        values = {
            "weight_proofs": float(self.proofs),
            "weight_fallbacks": float(self.fallbacks),
            "weight_checks": float(self.checks),
        } | {REGION_WEIGHTS_S.name(region): seconds for region, seconds in self.weights_s.items()}
        if self.proofs:
            values |= {"transfer_s": self.transfer_s, "apply_s": self.apply_s, "pause_s": self.pause_s}
        if self.checks:
            values["probe_mean_difference"] = self.probe_mean_difference
            values["probe_max_difference"] = self.probe_max_difference
        return values


def larger(known: float, found: float) -> float:
    """Return the larger of two numbers, or `known` if `found` is not finite."""
    return max(known, found) if isfinite(found) else known
