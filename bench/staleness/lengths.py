"""Lengths of sampled completions, by group.

A *source* is a list of real groups: the lengths of several samples of one problem by one model. Simulated group g takes
one of them, drawn with replacement, whole: so the spread between problems, that within one, and their correlation are
those of the data. Samples of a group that has more than needed begin at a random place. A sample that has to be
produced again (its worker died) is a new draw from the same real group. Where the data have one sample a problem, real
groups have one member, and a simulated group is several of them, independent.
"""

import csv
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

GROUP_IN_DATA = 8
"""Samples of a problem in the two contests."""

LONGER_LIMIT = "DS-R1-7B-TLDR"
"""The one model that was evaluated under a longer limit: its longest completion has 15,623 tokens, that of every other
model 5,300 to 6,700."""

RESERVED_GROUPS = 200_000
"""Draws made in advance: more groups than any run opens; after these, they repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Real groups of lengths in tokens, all of the same size."""

    name: str
    groups: npt.NDArray[np.int64]  # [real groups, samples of each]

    @property
    def is_correlated(self) -> bool:
        return bool(self.groups.shape[1] > 1)


class Lengths:
    """The length of each attempt at each sample of each group: a function of the seed and these numbers."""

    def __init__(self, source: Source, group_size: int, seed: int) -> None:
        if source.is_correlated and group_size > source.groups.shape[1]:
            raise ValueError(
                f"groups of {group_size}, but the real ones of {source.name} have {source.groups.shape[1]}"
            )
        self._source, self._seed, self._group_size = source, seed, group_size
        rng = np.random.default_rng(seed)
        num_real, size = source.groups.shape
        columns = 1 if source.is_correlated else group_size
        self._picks = rng.integers(num_real, size=(RESERVED_GROUPS, columns))
        self._offsets = rng.integers(size, size=RESERVED_GROUPS)

    def group(self, number: int) -> Sequence[int]:
        """First attempts at the samples of this group."""
        row = number % RESERVED_GROUPS
        if not self._source.is_correlated:
            return [int(length) for length in self._source.groups[self._picks[row], 0]]
        real = np.roll(self._source.groups[self._picks[row, 0]], -int(self._offsets[row]))
        return [int(length) for length in real[: self._group_size]]

    def again(self, number: int, sample: int, attempt: int) -> int:
        """A later attempt at one sample."""
        rng = random.Random(f"{self._seed} {number} {sample} {attempt}")
        row = self._picks[number % RESERVED_GROUPS]
        pool = self._source.groups[row[0]] if self._source.is_correlated else self._source.groups[:, 0]
        return int(rng.choice(pool))


def contests(path: Path, name: str, keep: Callable[[str, str], bool]) -> Source:
    """The problems of AIME24 and AMC23 that have 8 samples, for each model apart; `keep(model, dataset)` chooses."""
    by_problem: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if keep(row["model"], row["dataset"]):
                by_problem[row["model"], row["dataset"], row["problem"]].append(int(row["completion_tokens"]))
    groups = [lengths for lengths in by_problem.values() if len(lengths) == GROUP_IN_DATA]
    return Source(name=name, groups=np.array(groups))


def chat(path: Path) -> Source:
    """Completions of a chat service: one sample a prompt, so that samples of a group are independent."""
    with path.open(newline="") as lines:
        lengths = [int(row["completion_tokens"]) for row in csv.DictReader(lines)]
    return Source(name="chat", groups=np.array([[length] for length in lengths if length > 0]))


def drawn(source: Source, group_size: int, num_groups: int, seed: int) -> npt.NDArray[np.int64]:
    """The lengths of many simulated groups: [groups, samples of each]."""
    lengths = Lengths(source, group_size, seed)
    return np.array([lengths.group(number) for number in range(num_groups)])


def sources(folder: Path) -> Mapping[str, Callable[[], Source]]:
    """The sources that the data allow, by name: a folder `response_lengths` as the data's README describes it."""
    reasoning, conversations = folder / "reasoning_eval_lengths.csv", folder / "azure_2023_conv.csv"
    return {
        "aime24": lambda: contests(reasoning, "aime24", lambda _, dataset: dataset == "aime24"),
        "contests": lambda: contests(reasoning, "contests", lambda model, _: model != LONGER_LIMIT),
        "contests-and-longer": lambda: contests(reasoning, "contests-and-longer", lambda _model, _dataset: True),
        "chat": lambda: chat(conversations),
    }
