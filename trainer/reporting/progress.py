"""Sums over a whole run, which the run's summary reports and each checkpoint keeps.

`Progress` is an immutable value. Each method returns a new one with an event added. A restored run continues with the
sums of its checkpoint. This is pure arithmetic: times and counts come in as arguments.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from trainer.learning.gate import Inspection
from trainer.reporting.delivery import ReaderProof, Sent, larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sums over a run from its start, across restores. `*_bytes` count payload.

    - `accuracy_before`, `eval_reward_before`: accuracy and mean reward on held-out prompts before training, if known.
    - `rl_s`: wall time of training steps, without evaluations.
    - `delta_bytes`, `full_weights_bytes`: size of all published versions as they were sent, and as full bfloat16
      states.
    - `compared_elements`, `changed_elements`, `compared_payload_bytes`: elements, changed elements and size of those
      versions that were sent as deltas.
    - `staleness_max`, `pause_s`: largest values so far, not sums.
    - `remote_trajectory_bytes`, `remote_trajectory_json_bytes`: size of trajectories from other regions, as they were
      received and as JSON.
    - `changes_of_problems`: resumptions after which the run had other problems than before.
    - `previous_wall_s`, `wan_bytes`: wall time and bytes between regions up to the last checkpoint.
    """

    accuracy_before: float | None = None
    eval_reward_before: float | None = None
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
    changes_of_problems: float = 0.0

    def resumed(self, *, with_other_problems: bool) -> "Progress":
        """Add a resumption, after which the run may have other problems."""
        return replace(self, changes_of_problems=self.changes_of_problems + with_other_problems)

    def consumed(self, trained: Inspection, num_tokens: int, num_dropped: int, step_s: float) -> "Progress":
        """Add a batch that was trained on. `trained` is the inspection of exactly what the optimizer saw."""
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
        """Add a version that was published."""
        total = replace(
            self,
            num_published=self.num_published + 1,
            delta_bytes=self.delta_bytes + sent.payload_bytes,
            full_weights_bytes=self.full_weights_bytes + sent.content_bytes,
        )
        # A full state was compared with nothing, so it says nothing about how much changes.
        if not sent.is_delta:
            return total
        return replace(
            total,
            compared_elements=self.compared_elements + sent.num_elements,
            changed_elements=self.changed_elements + sent.num_changed,
            compared_payload_bytes=self.compared_payload_bytes + sent.payload_bytes,
        )

    def proven(self, proof: ReaderProof) -> "Progress":
        """Add a reader's report about a version that it holds."""
        return replace(
            self,
            weight_fallbacks=self.weight_fallbacks + proof.fallback,
            weight_checks=self.weight_checks + proof.engine_checked,
            pause_s=larger(self.pause_s, proof.pause_s),
        )

    def received(self, frame_bytes: int, json_bytes: int) -> "Progress":
        """Add a frame of trajectories from another region, with its size and the size of the same as JSON."""
        return replace(
            self,
            remote_trajectory_bytes=self.remote_trajectory_bytes + frame_bytes,
            remote_trajectory_json_bytes=self.remote_trajectory_json_bytes + json_bytes,
        )

    def to_mapping(self) -> dict[str, float]:
        """Return what is known of the sums by name, for a checkpoint's manifest."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of_mapping(cls, values: Mapping[str, float]) -> "Progress":
        """Return the progress of a mapping from `to_mapping`.

        A sum that an older version did not write stays 0, and so does one that was stored as null because it was not
        finite.
        """
        # Names of another version's sums are dropped rather than refused, so its checkpoints can be restored.
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in known and value is not None})

    def evaluated(self, held_out: Mapping[str, float]) -> "Progress":
        """Add the values of the evaluation before training."""
        accuracy, reward = held_out.get("accuracy"), held_out.get("eval_reward_mean")
        return replace(self, accuracy_before=accuracy, eval_reward_before=reward)

    def summary(
        self, held_out: Mapping[str, float], *, wall_s: float, bound: int, num_remote_regions: int
    ) -> dict[str, float]:
        """Return the values of the run's summary record, under the names of the metric registry.

        `held_out` are the values of the evaluation after training.
        `wall_s` is the time since this trainer started, and `bound` the job's bound on staleness. Bytes of weights
        between regions are the published bytes times `num_remote_regions`, since a version crosses once to each region.
        """
        # What the same run would have sent between regions with full bfloat16 weights and trajectories as JSON.
        full_bytes = self.full_weights_bytes * num_remote_regions + self.remote_trajectory_json_bytes
        values = {
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
            "changes_of_problems": self.changes_of_problems,
        }
        evaluated = {
            "accuracy_before": self.accuracy_before,
            "accuracy_after": held_out.get("accuracy"),
            "eval_reward_before": self.eval_reward_before,
            "eval_reward_after": held_out.get("eval_reward_mean"),
        }
        values |= {name: value for name, value in evaluated.items() if value is not None}
        # Ratios exist only where something was published, compared or changed.
        if self.delta_bytes:
            values["weights_ratio"] = self.full_weights_bytes / self.delta_bytes
        if self.compared_elements:
            values["delta_density"] = self.changed_elements / self.compared_elements
        if self.changed_elements:
            values["delta_bits_per_change"] = 8 * self.compared_payload_bytes / self.changed_elements
        return values
