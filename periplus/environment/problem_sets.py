"""The problems of a job and those of its evaluation sets behind one `Environment`.

The number of an item, which a lease names, says of which set it is: set 0 has the problems that the job trains on and
holds out, and set n is the n-th of `eval.sets`. Workers know from the number how to sample its completions. A set
without problems of its own has numbers of its own all the same, which lead to problems of set 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from periplus.environment.environment import Environment, Item

FIRST_OF_SET = 1 << 32
"""Difference between the first numbers of two sets. Far more than the problems of a set, and 16 sets fit into the 64
bits that the formats have for a number. Chosen by hand."""


def item_of(set_number: int, index: int) -> int:
    """Return the number of the problem `index` of a set; set 0 is the job's own."""
    return set_number * FIRST_OF_SET + index


def set_and_index(item: int) -> tuple[int, int]:
    """Return the set of an item, 0 for the job's own problems, and its index there."""
    return divmod(item, FIRST_OF_SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSets:
    """An environment whose length is that of the job's own problems, and which also knows those of its sets."""

    main: Environment
    sets: tuple[Environment, ...]

    def __len__(self) -> int:
        return len(self.main)

    def item(self, index: int) -> Item:
        """Return the problem of an item's number, as `item_of` makes it. Raises: ValueError if there is none."""
        environment, at = self._place(index)
        return replace(environment.item(at), index=index)

    def score(self, index: int, completion: str) -> float:
        """Return the score of a completion by the rule of the problem's own environment."""
        environment, at = self._place(index)
        return environment.score(at, completion)

    def _place(self, index: int) -> tuple[Environment, int]:
        number, at = set_and_index(index)
        if not 0 <= number <= len(self.sets):
            raise ValueError(f"item {index} is of evaluation set {number}, and the job has {len(self.sets)}")
        return (self.main if number == 0 else self.sets[number - 1]), at


def excluded_texts(sets: Sequence[Environment], main: Environment) -> frozenset[str]:
    """Return the prompts of sets with problems of their own, without letter case: nothing of them may be trained on."""
    return frozenset(
        environment.item(index).prompt.casefold()
        for environment in sets
        if environment is not main
        for index in range(len(environment))
    )
