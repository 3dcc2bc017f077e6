"""Digests of a run's problems: a run that is resumed with other problems may train on those that were held out.

A digest covers the prompts and answers of one data set or evaluation set in their order, and the other columns if the
job's rewards may read them, such as the tests of programs. One more covers how the prompts are divided into those for
warm-up, training and evaluation, which also depends on the model's tokens, on `sampling.prompt_tokens` and on the
evaluation sets. Checkpoints hold them, and the audit a digest of them all.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from periplus.environment.environment import Item
from periplus.environment.job_environment import TrainerEnvironment
from periplus.environment.splits import Splits
from periplus.errors import ConfigError
from periplus.job.data_section import makes_problems
from periplus.job.job_file import JobFile
from periplus.job.reward_functions import CodeReward, OwnReward
from trainer.data.dataset import Prompt

DIVISION = "the division into warm-up, training and held-out problems"
"""Name of the digest of the division."""

SHOWN_DIGITS = 12
"""Hexadecimal digits of a digest that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDigest:
    """Name of some problems for people, their number, and their BLAKE3 digest in hexadecimal."""

    name: str
    count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.count} problems (blake3 {self.digest[:SHOWN_DIGITS]})"


def problem_digests(
    job: JobFile, problems: TrainerEnvironment, prompts: Sequence[Prompt], splits: Splits
) -> tuple[CountedDigest, ...]:
    """Return the digests of a job's problems: of each data set, each evaluation set, and the division."""
    if makes_problems(job.environment):
        # The trainer has made the prompts already, which takes long; with the job's settings they decide the answers.
        assert job.environment is not None
        own = [_digest(f"the environment {job.environment.name}", ([prompt.text] for prompt in prompts))]
    else:
        rows: list[list[Sequence[object]]] = [[] for _ in job.data.datasets]
        for item in map(problems.main.item, range(len(problems.main))):
            rows[item.source].append(_row(item, job))
        own = [_digest(f"data set {each.path}", found) for each, found in zip(job.data.datasets, rows, strict=True)]
    sets = [
        _digest(f"evaluation set {name}", (_row(item, job) for item in map(found.item, range(len(found)))))
        for name, found in zip(job.eval.sets, problems.sets, strict=True)
        if found is not problems.main
    ]
    return (*own, *sets, _digest(DIVISION, (splits.warmup, splits.train, splits.held_out)))


def digest_of_all(digests: Iterable[CountedDigest]) -> bytes:
    """Return one digest of 32 bytes over these, which does not depend on their names: files may be moved."""
    return blake3("".join(each.digest for each in digests).encode()).digest()


def check_same_problems(
    before: Sequence[CountedDigest], now: Sequence[CountedDigest], *, may_differ: bool
) -> tuple[str, ...]:
    """Return a sentence for each difference from the problems of a checkpoint.

    Raises: ConfigError if they differ, unless they `may_differ`.
    """
    if digest_of_all(before) == digest_of_all(now):
        return ()
    differences = tuple(_differences(before, now))
    if not may_differ:
        raise ConfigError(
            f"the run's problems are not those that it began with: {'; '.join(differences)}; held-out problems would "
            "be trained on. Restore the earlier data, or resume with --change (allow_other_problems=True in Python), "
            "knowing that held-out problems may have been trained on"
        )
    return differences


def _differences(before: Sequence[CountedDigest], now: Sequence[CountedDigest]) -> Iterable[str]:
    # All but the division by their places, since a path may be another one than before.
    *sets_before, division_before = before
    *sets_now, division_now = now
    for old, new in zip(sets_before, sets_now, strict=False):
        if old.digest != new.digest:
            yield f"{new.name} had {old} and has {new}"
    for old in sets_before[len(sets_now) :]:
        yield f"{old.name} with {old} is gone"
    for new in sets_now[len(sets_before) :]:
        yield f"{new.name} with {new} is new"
    if division_before.digest != division_now.digest:
        yield f"{DIVISION} is another one"


def _row(item: Item, job: JobFile) -> Sequence[object]:
    messages = [message.to_mapping() for message in item.messages]
    reads_columns = any(isinstance(each, CodeReward | OwnReward) for each in job.reward.entries)
    return [item.prompt, item.answer, item.solution, messages, dict(item.columns) if reads_columns else {}]


def _digest(name: str, rows: Iterable[Sequence[object]]) -> CountedDigest:
    hashed, count = blake3(), 0
    for row in rows:
        hashed.update(json.dumps(list(row)).encode() + b"\n")
        count += 1
    return CountedDigest(name=name, count=count, digest=hashed.hexdigest())
