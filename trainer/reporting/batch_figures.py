"""Figures of the batch that a step was trained on: lengths, parts of the reward, and throughput of each region.

They are computed from the trajectories alone, as `RunRecorder` records them. Parts of the reward come with each sample
(periplus/job/samples/reward_parts.py). A part whose name no metric may have is left out here, and shown with its
samples all the same.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from periplus.job.samples.reward_parts import reward_parts_of
from periplus.process.telemetry import REGION_TOKENS_PER_S, REWARD_PART_MEAN, MetricFamily
from periplus.values.trajectory import StopReason, Trajectory

MAX_PARTS = 32
"""Most parts of a reward that a record has metrics of, the first by name. Chosen by hand, far above what a job names;
a reward function that made up names would otherwise fill every record."""


def figures_of_batch(trained: Sequence[Trajectory], regions: Mapping[str, str], step_s: float) -> dict[str, float]:
    """Return the figures of a batch under the names of the metric registry; none for an empty batch.

    `regions` maps workers to their regions. Tokens of a worker that is not among them are in no region's figure.
    `step_s` is the wall time of the step.
    """
    if not trained:
        return {}
    lengths = [len(trajectory.completion_ids) for trajectory in trained]
    num_truncated = sum(trajectory.stop_reason is StopReason.LENGTH for trajectory in trained)
    values = {
        "completion_tokens_mean": float(np.mean(lengths)),
        "completion_tokens_max": float(max(lengths)),
        "truncated_fraction": num_truncated / len(trained),
    }
    return values | reward_parts(trained, REWARD_PART_MEAN) | _regions(trained, regions, step_s)


def reward_parts(trajectories: Sequence[Trajectory], family: MetricFamily) -> dict[str, float]:
    """Return the mean of each part of the reward, under its name in a family of metrics."""
    found: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for part, value in reward_parts_of(trajectory.metadata).items():
            found[part].append(value)
    named = {}
    for part in sorted(found):
        try:
            named[family.name(part)] = float(np.mean(found[part]))
        except ValueError:
            continue  # a name that no metric may have
    return dict(list(named.items())[:MAX_PARTS])


def _regions(trained: Sequence[Trajectory], regions: Mapping[str, str], step_s: float) -> dict[str, float]:
    tokens: dict[str, int] = defaultdict(int)
    for trajectory in trained:
        if region := regions.get(trajectory.worker_id):
            tokens[region] += len(trajectory.completion_ids)
    return {REGION_TOKENS_PER_S.name(name): count / max(step_s, 1e-9) for name, count in sorted(tokens.items())}
