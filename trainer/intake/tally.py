"""Counts of what came in, which the run recorder (trainer/reporting/run_recorder.py) takes from time to time.

The counts are reported and decide nothing. The size of trajectories as JSON is what the same samples would have taken
without the codec: it is measured for a part of each step and extrapolated by tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from periplus.codec import trajectory as trajectory_codec
from periplus.values.trajectory import Trajectory

JSON_TOKENS = 20_000
"""Number of tokens in each step whose size as JSON is measured, at about 1 us each; chosen by hand. The size is only
reported, beside that of the compressed frames."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of what came in since the run recorder last took them: frames, samples, groups and refusals.

    `frames_bytes` is the compressed size of the frames, and `frames_json_bytes` the estimated size of the same
    trajectories as JSON. `refused` and `duplicates` count samples, `refused_messages` messages and frames, `dropped`
    and `filtered` the samples of dropped groups, `lost` leases that ended without a result. `hedged` counts samples
    that were leased a second time (trainer/ledger/hedging.py), and `hedge_duplicates` those of the `duplicates` that
    came by the slower of the two leases. `reward_failures` counts failures of reward functions by kind, of samples that
    came in all the same and of those that did not.
    """

    frames_bytes: int = 0
    frames_json_bytes: int = 0
    duplicates: int = 0
    refused: int = 0
    refused_messages: int = 0
    json_measured_bytes: int = 0
    json_measured_tokens: int = 0
    dropped: int = 0
    filtered: int = 0
    lost: int = 0
    hedged: int = 0
    hedge_duplicates: int = 0
    failed_groups: int = 0
    overdue_groups: int = 0
    reward_failures: Counter[str] = field(default_factory=Counter)

    def as_json(self, trajectories: Sequence[Trajectory]) -> int:
        """Return the size of the trajectories as JSON, in bytes.

        It is measured for the first JSON_TOKENS tokens of a step, and extrapolated by tokens beyond.
        """
        num_tokens = sum(len(t.completion_ids) for t in trajectories)
        if self.json_measured_tokens < JSON_TOKENS:
            num_bytes = trajectory_codec.json_bytes(trajectories)
            self.json_measured_tokens += num_tokens
            self.json_measured_bytes += num_bytes
            return num_bytes
        return num_tokens * self.json_measured_bytes // self.json_measured_tokens


@dataclass(frozen=True, slots=True)
class RemoteBytes:
    """Size of the frames that came from other regions, in bytes, and the estimated size of the same as JSON."""

    num_bytes: int = 0
    json_bytes: int = 0
