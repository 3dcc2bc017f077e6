"""Sums over a run, as the summary reports them and a checkpoint keeps them. Pure arithmetic, no clock."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from trainer.learning.gate import Inspection
from trainer.reporting.delivery import ReaderProof, Sent, larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`*_bytes` are payload; `rl_s` is the wall time of reinforcement learning without evaluations; `compared_*` and
    `changed_elements` are of deltas, `delta_bytes` of all versions."""

    accuracy_before: float = 0.0
    warmup_s: float = 0.0
    warmup_examples: float = 0.0
    steps: float = 0.0
    rl_s: float = 0.0
    completion_tokens: float = 0.0
    staleness_max: float = 0.0
    staleness_violations: float = 0.0
    dropped_samples: float = 0.0
    weight_digest_mismatches: float = 0.0
    num_published: float = 0.0
    full_weights_bytes: float = 0.0
    delta_bytes: float = 0.0
    compared_elements: float = 0.0
    changed_elements: float = 0.0
    compared_payload_bytes: float = 0.0
    weight_fallbacks: float = 0.0
    weight_checks: float = 0.0
    pause_s: float = 0.0
    remote_trajectory_bytes: float = 0.0
    remote_trajectory_json_bytes: float = 0.0
    previous_wall_s: float = 0.0
    wan_bytes: float = 0.0

    def consumed(self, trained: Inspection, num_tokens: int, num_dropped: int, step_s: float) -> "Progress":
        """One batch was trained on. `trained` inspects exactly what the optimizer saw."""
        return replace(
            self,
            steps=self.steps + 1,
            rl_s=self.rl_s + step_s,
            completion_tokens=self.completion_tokens + num_tokens,
            staleness_max=max(self.staleness_max, trained.staleness_max),
            staleness_violations=self.staleness_violations + trained.violations,
            dropped_samples=self.dropped_samples + num_dropped,
        )

    def published(self, sent: Sent) -> "Progress":
        """One version went out."""
        total = replace(
            self,
            num_published=self.num_published + 1,
            delta_bytes=self.delta_bytes + sent.payload_bytes,
            full_weights_bytes=self.full_weights_bytes + sent.content_bytes,
        )
        if not sent.is_delta:
            return total
        return replace(
            total,
            compared_elements=self.compared_elements + sent.num_elements,
            changed_elements=self.changed_elements + sent.num_changed,
            compared_payload_bytes=self.compared_payload_bytes + sent.payload_bytes,
        )

    def proven(self, proof: ReaderProof) -> "Progress":
        """A reader said what it holds."""
        return replace(
            self,
            weight_fallbacks=self.weight_fallbacks + proof.fallback,
            weight_checks=self.weight_checks + proof.engine_checked,
            pause_s=larger(self.pause_s, proof.pause_s),
        )

    def received(self, frame_bytes: int, json_bytes: int) -> "Progress":
        """A frame came from another region."""
        return replace(
            self,
            remote_trajectory_bytes=self.remote_trajectory_bytes + frame_bytes,
            remote_trajectory_json_bytes=self.remote_trajectory_json_bytes + json_bytes,
        )

    def to_mapping(self) -> dict[str, float]:
        """For the checkpoint's manifest."""
        return asdict(self)

    @classmethod
    def of_mapping(cls, values: Mapping[str, float]) -> "Progress":
        """The inverse of to_mapping; what an older build did not write, or was not finite, stays 0."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in known and value is not None})

    def summary(self, *, accuracy_after: float, wall_s: float, bound: int, num_remote_regions: int) -> dict[str, float]:
        """The values of the run's summary record, under their registered names."""
        full_bytes = self.full_weights_bytes * num_remote_regions + self.remote_trajectory_json_bytes
        values = {
            "accuracy_before": self.accuracy_before,
            "accuracy_after": accuracy_after,
            "warmup_s": self.warmup_s,
            "warmup_examples": self.warmup_examples,
            "wall_s": self.previous_wall_s + wall_s,
            "steps": self.steps,
            "tokens_per_s": self.completion_tokens / self.rl_s if self.rl_s else 0.0,
            "wan_bytes_full_weights": full_bytes,
            "wan_bytes_json": self.remote_trajectory_json_bytes,
            "wan_delta_bytes": self.delta_bytes * num_remote_regions,
            "wan_trajectory_bytes": self.remote_trajectory_bytes,
            "staleness_max": self.staleness_max,
            "staleness_bound": float(bound),
            "staleness_violations": self.staleness_violations,
            "dropped_samples": self.dropped_samples,
            "weight_digest_mismatches": self.weight_digest_mismatches,
            "weight_fallbacks": self.weight_fallbacks,
            "weight_checks": self.weight_checks,
            "pause_s": self.pause_s,
        }
        if self.delta_bytes:
            values["weights_ratio"] = self.full_weights_bytes / self.delta_bytes
        if self.compared_elements:
            values["delta_density"] = self.changed_elements / self.compared_elements
        if self.changed_elements:
            values["delta_bits_per_change"] = 8 * self.compared_payload_bytes / self.changed_elements
        return values
