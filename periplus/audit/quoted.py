"""Recomputation of the figures that people quote: the mean reward of each step, and the values of each evaluation.

The figures are those of `metrics.jsonl`. They are computed again, as the trainer computes them, from the samples that
the journal's `consume` and `eval` lines name, with the rewards of the kept frames. A figure is not recomputed if the
frame of one of its samples is gone.

An evaluation has one line in metrics.jsonl for each of its parts: the held-out problems, and then each named set. Its
groups are numbered in the order of the parts, of the problems in a part, and of a problem's samples. So the sizes that
the lines claim divide the groups, and they must add up to what was leased.

A trainer writes its line after the journal's, so the last lines of a fork without an end may be missing. Which answers
are right depends on the job. The audit knows only the newest one, which is in config.yaml: an evaluation in a fork that
began with another config.yaml counts as not recomputed if its accuracy differs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from periplus.audit.evidence import Evidence, Witness
from periplus.audit.findings import Code, Findings
from periplus.audit.history import Fork, History
from periplus.audit.records import UNSOUND, EvalEntry
from periplus.environment.set_scores import scores_of
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind

PLACE = "metrics.jsonl"
"""File that findings name."""
SAME = 1e-9
"""Largest difference of two equal figures, relative or absolute: sums may be rounded in another order."""
FINISHED = ("succeeded", "stopped")
"""Ends of a fork before which its trainer waits until all records are written."""
OF_ACCURACY = ("accuracy", "mean_at_k", "pass_at_k")
"""Values that depend on what is right. The first is of the held-out problems, and the others of named sets."""
SIZES = ("num_prompts", "samples_per_prompt", "k")
"""Claimed sizes of an evaluation. The last two are of named sets; both are 1 for the held-out problems."""
QUOTED = frozenset(("reward_mean", "eval_reward_mean", *OF_ACCURACY, *SIZES))
"""All values of a record that an audit reads."""


@dataclass(slots=True, kw_only=True)
class QuotedFigures:
    """Numbers of steps and evaluations whose mean reward was recomputed, and of the others.

    `accuracies` counts the evaluations whose accuracy was recomputed as well. A named set is an evaluation of its own.
    `unwritten_steps` are the last ones of a fork without an end, if they have no line.
    """

    steps: int = 0
    steps_without_frames: int = 0
    evaluations: int = 0
    accuracies: int = 0
    evaluations_not_recomputed: int = 0
    unwritten_steps: int = 0


def check(history: History, evidence: Evidence, findings: Findings) -> QuotedFigures:
    """Compare the figures in metrics.jsonl with recomputed ones, and report contradictions as findings."""
    quoted = QuotedFigures()
    if evidence.records is None:
        return quoted
    steps: dict[Policy, list[Record]] = defaultdict(list)
    evaluations: dict[Policy, list[Record]] = defaultdict(list)
    newest: dict[int, int] = {}
    for record in evidence.records:
        if record.kind is RecordKind.STEP:
            steps[record.policy].append(record)
            newest[record.policy.fork] = max(record.policy.version, newest.get(record.policy.fork, 0))
        elif record.kind in (RecordKind.EVAL, RecordKind.EVAL_SET):
            evaluations[record.policy].append(record)
    for records in (*steps.values(), *evaluations.values()):
        _once(records, findings)
    for fork in history.forks:
        _steps(fork, steps, newest.get(fork.number, -1), quoted, findings)
        _Evaluations(fork, evidence, quoted, findings).check(evaluations)
    return quoted


def _once(records: Sequence[Record], findings: Findings) -> None:
    # A start of a trainer is a fork of its own, so that no resumption writes a line again.
    seen = Counter((r.kind, r.text if r.kind is RecordKind.EVAL_SET else "") for r in records)
    for (kind, text), count in seen.items():
        if count > 1:
            message = f"{count} lines of kind {kind}{text and f' {text}'} for {records[0].policy}, where one is written"
            findings.add(Code.METRICS_TWICE, PLACE, message, policy=str(records[0].policy), lines=count)


def _steps(
    fork: Fork, lines: Mapping[Policy, Sequence[Record]], newest: int, quoted: QuotedFigures, findings: Findings
) -> None:
    for batch in fork.batches:
        policy = batch.consume.policy.next()
        records = lines.get(policy, ())
        if not records:
            if fork.ended in FINISHED or policy.version < newest:
                message = f"no line for the step that made {policy}"
                findings.add(Code.METRICS_MISSING, PLACE, message, policy=str(policy))
            else:
                quoted.unwritten_steps += 1
        elif batch.by_frame < len(batch.consume.samples):
            quoted.steps_without_frames += 1
        else:
            quoted.steps += 1
            for record in records:
                _compare(record, {"reward_mean": batch.reward_mean}, f"the step that made {policy}", findings)


def _compare(record: Record, expected: Mapping[str, float | None], what: str, findings: Findings) -> None:
    for name, value in expected.items():
        found = record.values.get(name)
        if _is_same(found, value):
            continue
        message = f"{name} of {what} is {found}; by the kept samples it is {value}"
        shown = found if found is not None and math.isfinite(found) else None
        findings.add(Code.METRICS_WRONG, PLACE, message, name=name, found=shown, expected=value)


def _is_same(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=SAME, abs_tol=SAME)


@dataclass(frozen=True, slots=True)
class _Evaluations:
    """Check of one fork's evaluations."""

    fork: Fork
    evidence: Evidence
    quoted: QuotedFigures
    findings: Findings

    def check(self, lines: Mapping[Policy, Sequence[Record]]) -> None:
        fork = self.fork
        # One evaluation runs at a time: its groups are those that were leased since the one before ended.
        leased = sorted((at, group) for group, at in fork.group_leased_at.items() if fork.is_eval(group))
        done = 0
        for number, (at, entry) in enumerate(fork.evals, 1):
            first = done
            while done < len(leased) and leased[done][0] < at:
                done += 1
            groups = self._counted(sorted(group for _, group in leased[first:done]))
            records = lines.get(entry.policy, ())
            if not groups:
                continue
            if records:
                self._evaluation(entry, groups, records)
            elif fork.ended in FINISHED or number < len(fork.evals):
                message = f"no line for the evaluation of {entry.policy}"
                self.findings.add(Code.METRICS_MISSING, PLACE, message, policy=str(entry.policy))

    def _counted(self, asked: Sequence[int]) -> list[int]:
        """Return the groups of an evaluation without those of wrong rewards, whose problems were asked for again."""
        unsound = {drop.group for _, drop in self.fork.drops if drop.why == UNSOUND}
        place: dict[int, int] = {}
        for group in asked:
            place.setdefault(self.fork.items[group][0], len(place))
        return sorted(set(asked) - unsound, key=lambda group: (place[self.fork.items[group][0]], group))

    def _evaluation(self, entry: EvalEntry, groups: Sequence[int], records: Sequence[Record]) -> None:
        measured = {used.group for used in entry.samples}
        items = [self.fork.items[group][0] for group in groups]
        start = 0
        for record in records:
            num_prompts, num_samples, _ = _sizes(record)
            end = start + num_prompts * num_samples
            # The samples of a problem are next to each other.
            if not start < end <= len(groups) or any(
                len(set(items[at : at + num_samples])) > 1 for at in range(start, end, num_samples)
            ):
                break
            self._part(entry, groups[start:end], measured, record)
            start = end
        if start != len(groups):
            message = f"the lines for the evaluation of {entry.policy} claim other problems and samples than the "
            self.findings.add(Code.METRICS_WRONG, PLACE, f"{message}{len(groups)} that were leased", groups=len(groups))

    def _part(self, entry: EvalEntry, groups: Sequence[int], measured: set[int], record: Record) -> None:
        accepted = [self.fork.accepted.get((group, 0)) if group in measured else None for group in groups]
        if any(each is not None and each.kept is None for each in accepted):
            self.quoted.evaluations_not_recomputed += 1
            return
        # None stands for a sample that no worker could produce.
        kept = [None if each is None else each.kept for each in accepted]
        what = f"the evaluation {record.text} of {entry.policy}"
        rewards = [each.reward for each in kept if each is not None and each.reward is not None]
        mean = math.fsum(rewards) / len(rewards) if rewards else None
        _compare(record, {"eval_reward_mean": mean}, what, self.findings)
        self.quoted.evaluations += 1
        if self.evidence.knows_right is None:
            return
        expected = self._scores(kept, record)
        # The job of this fork may have called other answers right.
        is_own = self.fork.opened.settings == self.evidence.config
        if not is_own and not all(_is_same(record.values.get(name), value) for name, value in expected.items()):
            return
        _compare(record, expected, what, self.findings)
        self.quoted.accuracies += self.evidence.knows_right

    def _scores(self, kept: Sequence[Witness | None], record: Record) -> Mapping[str, float | None]:
        names = OF_ACCURACY[1:] if record.kind is RecordKind.EVAL_SET else OF_ACCURACY[:1]
        _, size, k = _sizes(record)
        if not self.evidence.knows_right or not 1 <= k <= size:
            return dict.fromkeys(names)
        right = [each is not None and bool(each.is_right) for each in kept]
        num_right = [sum(right[at : at + size]) for at in range(0, len(right), size)]
        scores = scores_of(num_right, num_samples=size, k=k)
        return dict(zip(names, (scores.mean.value, scores.passed.value), strict=False))


def _sizes(record: Record) -> tuple[int, int, int]:
    """Return the claimed numbers of problems, of samples of each, and the k of pass@k; 0 for what is no such number."""
    values = {"samples_per_prompt": 1.0, "k": 1.0} if record.kind is RecordKind.EVAL else {}
    found = ({**record.values, **values}.get(name, 0.0) for name in SIZES)
    num_prompts, num_samples, k = (int(value) if 0 < value < 1 << 32 else 0 for value in found)
    return num_prompts, num_samples, k
