"""The evaluations of a run: which are due, which samples they need, and what is recorded of them.

An evaluation has *parts*: the held-out problems, which are answered greedily, and the named sets of `eval.sets`. Before
the first and after the last step all parts are evaluated together, and training waits. Between steps the parts that are
due are evaluated together in the background. One evaluation runs at a time: what falls due meanwhile begins once the
present one has ended, at the version of that time, and once only.

Accuracy is the share of right samples, by what the job calls right (periplus/job/samples/correctness.py). Where that is
not known, no accuracy is recorded. The mean reward and its parts are recorded in any case.

Workers go on to newer versions while an evaluation runs in the background, and nobody holds them back. So an evaluation
that began at version N has samples of N and of the versions that followed, and its record names the oldest and the
newest version that sampled a token of it. A sample that no worker could produce counts as wrong. One with a wrong
reward is asked for again (intake/ledger_service.py).
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from periplus.environment.set_scores import Estimate, scores_of
from periplus.job.eval_section import HELD_OUT
from periplus.job.job_file import JobFile
from periplus.job.samples.correctness import correctness_of
from periplus.process.telemetry import EVAL_REWARD_PART_MEAN
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from periplus.values.trajectory import StopReason, Trajectory
from trainer.data.dataset import Dataset
from trainer.intake.committed import KeptTrajectory
from trainer.intake.ledger_service import LedgerService
from trainer.reporting.batch_figures import reward_parts
from trainer.reporting.run_recorder import RunRecorder
from trainer.reporting.sample_recorder import SampleRecorder

OF_SETS = frozenset(
    (
        *(f"{name}{end}" for name in ("mean_at_k", "pass_at_k") for end in ("", "_low", "_high")),
        *("k", "samples_per_prompt", "truncated_samples"),
    )
)
"""Figures that are recorded of evaluation sets alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPart:
    """One thing that an evaluation measures; `name` is empty for the held-out problems."""

    name: str
    items: tuple[int, ...]
    num_samples: int
    k: int
    every_steps: int

    def is_due(self, version: int) -> bool:
        """Return whether the part is evaluated in the background after the step that made this version."""
        return self.every_steps > 0 and version % self.every_steps == 0


@dataclass(slots=True, kw_only=True)
class _Background:
    """An evaluation that runs while training goes on, and the policy and the time at which it began."""

    parts: tuple[EvaluationPart, ...]
    policy: Policy
    began_s: float


def parts_of(job: JobFile, dataset: Dataset) -> tuple[EvaluationPart, ...]:
    """Return what a job's evaluations measure: the held-out problems, then the named sets in their order."""
    held_out = EvaluationPart(
        name="", items=dataset.splits.held_out, num_samples=1, k=1, every_steps=job.eval.every_steps
    )
    return *([held_out] if held_out.items else []), *(
        EvaluationPart(
            name=each.name,
            items=each.items_of(dataset.splits),
            num_samples=each.settings.samples,
            k=each.settings.pass_k,
            every_steps=each.settings.every_steps,
        )
        for each in dataset.sets
    )


class Evaluator:
    """Evaluates the policy of one trainer. `now` is a monotonic clock."""

    def __init__(
        self,
        job: JobFile,
        dataset: Dataset,
        ledger_service: LedgerService,
        recorder: RunRecorder,
        samples: SampleRecorder,
        now: Callable[[], float],
    ) -> None:
        self._correct = correctness_of(job)
        self._parts = parts_of(job, dataset)
        self._ledger_service = ledger_service
        self._recorder = recorder
        self._samples = samples
        self._now = now
        self._due: set[str] = set()
        self._running: _Background | None = None

    async def evaluate(self, when: str, policy: Policy, stop: asyncio.Event) -> Mapping[str, float] | None:
        """Evaluate all parts while training waits, and return the values of the held-out problems; None if stopped.

        `when` is `before` or `after` training. `policy` is the present one, which must be published.
        """
        began_s = self._now()
        kept = await self._ledger_service.evaluation(_items(self._parts), stop)
        if kept is None:
            return None
        return self._record(self._parts, kept, when, policy, self._now() - began_s)

    async def between_steps(self, policy: Policy) -> None:
        """Record the evaluation in the background if it has ended, and begin what is due at the present policy."""
        await self._collect(None)
        self._due |= {part.name for part in self._parts if part.is_due(policy.version)}
        if self._running is None and self._due:
            parts = tuple(part for part in self._parts if part.name in self._due)
            self._due.clear()
            self._running = _Background(parts=parts, policy=policy, began_s=self._now())
            await self._ledger_service.begin_evaluation(_items(parts))

    async def finish(self, stop: asyncio.Event) -> bool:
        """Wait for the evaluation in the background and record it; return False if `stop` was set before."""
        await self._collect(stop)
        return self._running is None

    async def _collect(self, stop: asyncio.Event | None) -> None:
        running = self._running
        if running is None:
            return
        kept = await self._ledger_service.evaluated(stop)
        if kept is not None:
            self._running = None
            self._record(running.parts, kept, "during", running.policy, self._now() - running.began_s)

    def _record(
        self, parts: Sequence[EvaluationPart], found: Sequence[KeptTrajectory], when: str, policy: Policy, eval_s: float
    ) -> Mapping[str, float]:
        """Record each part, and return the values of the held-out problems, none if they are not among the parts."""
        held_out: dict[str, float] = {}
        # The samples come in the order in which the parts asked for them, without those that failed.
        remaining = list(found)
        for part in parts:
            own = _taken(remaining, part)
            self._samples.evaluation(part.name or HELD_OUT, policy, own)
            values = self._values(part, [each.trajectory for each in own]) | {"eval_s": eval_s}
            if part.name:
                self._recorder.record(RecordKind.EVAL_SET, part.name, values, policy=policy)
            else:
                # One sample a problem: its accuracy is mean@1, and the other figures of sets say nothing more.
                held_out = {"accuracy": values["mean_at_k"]} if "mean_at_k" in values else {}
                held_out |= {name: value for name, value in values.items() if name not in OF_SETS}
                self._recorder.record(RecordKind.EVAL, when, held_out, policy=policy)
        return held_out

    def _values(self, part: EvaluationPart, found: Sequence[Trajectory]) -> dict[str, float]:
        rewards = [each.reward for each in found if each.reward is not None]
        versions = [run.policy.version for trajectory in found for run in trajectory.policies]
        values = {
            **self._scores(part, found),
            **reward_parts(found, EVAL_REWARD_PART_MEAN),
            "unjudged_samples": float(len(found) - len(rewards)),
            "k": float(part.k),
            "samples_per_prompt": float(part.num_samples),
            "num_prompts": float(len(part.items)),
            "truncated_samples": float(sum(each.stop_reason is StopReason.LENGTH for each in found)),
            "missing_samples": float(len(part.items) * part.num_samples - len(found)),
        }
        if rewards:
            values["eval_reward_mean"] = math.fsum(rewards) / len(rewards)
        if versions:
            values |= {"oldest_version": float(min(versions)), "newest_version": float(max(versions))}
        return values

    def _scores(self, part: EvaluationPart, found: Sequence[Trajectory]) -> dict[str, float]:
        if self._correct.at_least is None:
            return {}
        right = dict.fromkeys(part.items, 0)
        for trajectory in found:
            right[trajectory.item] += bool(self._correct.is_right(trajectory))
        scores = scores_of(tuple(right.values()), num_samples=part.num_samples, k=part.k)
        return {**_estimate("mean_at_k", scores.mean), **_estimate("pass_at_k", scores.passed)}


def _items(parts: Sequence[EvaluationPart]) -> tuple[int, ...]:
    return tuple(item for part in parts for item in part.items for _ in range(part.num_samples))


def _taken(remaining: list[KeptTrajectory], part: EvaluationPart) -> list[KeptTrajectory]:
    """Remove the samples of a part from the start of `remaining`, and return them."""
    items = frozenset(part.items)
    count = next((at for at, each in enumerate(remaining) if each.trajectory.item not in items), len(remaining))
    own = remaining[:count]
    del remaining[:count]
    return own


def _estimate(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
