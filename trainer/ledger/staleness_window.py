"""The staleness window: how many groups of each age can still be consumed within the bound.

Staleness is the number of versions between the sampling of a token and the training step that consumes it. A group is
the samples of one prompt; they are consumed together. A group's *class* is the oldest version that any of its tokens
has, or may have while the group is being produced. A group of class s may be consumed by the steps up to s + bound.
Step k takes B groups. So all groups of class s or older must be consumed in the steps next, next + 1 .. s + bound:

    for every s:   N(<= s)  <=  B * (s + bound - next + 1)                                            (*)

where N counts the groups that are open and not consumed, and `next` is the step whose batch is formed next. By
earliest-deadline-first scheduling, (*) is also sufficient: while it holds, there is an order in which nothing expires.

The staleness bound is enforced by checks of (*) at three places of this package. *Admission*
(`leasing.class_to_open`) opens a group only if (*) still holds with it. *Acceptance* (acceptance.py) takes a result
only if (*) still holds with the result's oldest version. *Consumption* (`Ledger._form_batch` in machine.py) takes a
batch only if (*) still holds for the groups that the batch leaves behind: none of them may expire before its step.
For one class that starts now, (*) reads N <= B * (bound + 1), AReaL's admission formula (arXiv 2505.24298, section
5.1).
"""

from collections import Counter
from collections.abc import Iterable, Mapping


def fits(classes: Mapping[int, int], *, groups_per_step: int, bound: int, next_step: int) -> bool:
    """Return whether (*) of the module's docstring holds; `classes[s]` is the number of open groups of class s."""
    return excess(classes, groups_per_step=groups_per_step, bound=bound, next_step=next_step) == 0


def excess(classes: Mapping[int, int], *, groups_per_step: int, bound: int, next_step: int) -> int:
    """Return how many of the oldest groups must be given up so that (*) holds; 0 if it holds already."""
    # N(<= s) changes only at the classes that exist. The worst of their excesses must be given up.
    total = most = 0
    for version in sorted(classes):
        total += classes[version]
        most = max(most, total - groups_per_step * max(0, version + bound - next_step + 1))
    return most


def plus(classes: Mapping[int, int], added: Iterable[int]) -> Counter[int]:
    """Return the number of groups of each class, with one more group for each version of `added`."""
    result = Counter(classes)
    for version in added:
        result[version] += 1
    return result


def minus(classes: Mapping[int, int], removed: Iterable[int]) -> Counter[int]:
    """Return the number of groups of each class, with one group less for each version of `removed`."""
    result = Counter(classes)
    for version in removed:
        result[version] -= 1
        if not result[version]:
            del result[version]
    return result


def without_oldest(classes: Mapping[int, int], whole: Mapping[int, int], count: int) -> Counter[int]:
    """Return the number of groups of each class after the `count` oldest whole groups are taken away.

    A group is whole when all its samples are in; `whole[s]` is the number of whole groups of class s.
    """
    result = Counter(classes)
    for version in sorted(whole):
        taken = min(count, whole[version])
        count -= taken
        result[version] -= taken
    return result
