"""Seconds of a step in which the workers of each region generate, from the sums that they report with each version.

A worker reports the busy seconds of its engine since its process began. The difference of two reports over the number
of versions between them is its mean for a step. A process that starts anew begins with a sum of 0, so a sum that falls
is that of another process, and is only the begin of the next difference.

Sums come from other machines and are not trusted: one that is negative or not finite is ignored.
"""

from dataclasses import dataclass
from math import isfinite

from periplus.process.telemetry import REGION_GENERATION_S
from periplus.values.policy import Policy
from trainer.reporting.delivery import ReaderProof

MAX_WORKERS = 4096
"""Most workers whose last report is kept; the one heard of least recently is forgotten. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class _Report:
    policy: Policy
    busy_s: float


@dataclass(slots=True)
class _Stretch:
    """What a worker has reported since the last step was recorded."""

    region: str
    busy_s: float
    num_versions: int


class GenerationTimes:
    """The last report of each worker, and what they reported since the last step was recorded."""

    def __init__(self) -> None:
        self._last: dict[str, _Report] = {}
        self._since: dict[str, _Stretch] = {}

    def add(self, worker_id: str, region: str | None, proof: ReaderProof) -> None:
        """Add the report of a worker about a version that it holds; `region` is None if it is not known."""
        if not proof.ok or not region or not isfinite(proof.generation_s) or proof.generation_s < 0.0:
            return
        last = self._last.get(worker_id)
        if last is not None and last.policy.fork == proof.policy.fork and last.busy_s <= proof.generation_s:
            num_versions = proof.policy.version - last.policy.version
            if num_versions <= 0:
                return  # the version was repaired; its time counts with the next version
            stretch = self._since.setdefault(worker_id, _Stretch(region, 0.0, 0))
            stretch.busy_s += proof.generation_s - last.busy_s
            stretch.num_versions += num_versions
        # The newest report is the last key, so that the first one is of the worker that was heard of least recently.
        self._last.pop(worker_id, None)
        self._last[worker_id] = _Report(proof.policy, proof.generation_s)
        if len(self._last) > MAX_WORKERS:
            self._since.pop(oldest := next(iter(self._last)), None)
            del self._last[oldest]

    def take(self) -> dict[str, float]:
        """Return the mean of each region's workers under the names of the metric registry, and begin anew."""
        means: dict[str, list[float]] = {}
        for stretch in self._since.values():
            means.setdefault(stretch.region, []).append(stretch.busy_s / stretch.num_versions)
        self._since = {}
        return {REGION_GENERATION_S.name(region): sum(each) / len(each) for region, each in sorted(means.items())}
