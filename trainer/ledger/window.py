"""The window: how many groups of each age can still be consumed within the bound. Arithmetic of both gates.

A group's *class* is the oldest version that any of its tokens has, or may have while it is being produced. A group of
class s may be consumed by the steps up to s + bound. Step k takes B groups. So all groups of class s or older have room
in the steps next, next + 1 .. s + bound, and nowhere else:

    for every s:   N(<= s)  <=  B * (s + bound - next + 1)                                            (*)

where N counts the groups that are open and not consumed, and `next` is the step whose batch is formed next. By
earliest-deadline-first scheduling, (*) is also sufficient: while it holds, there is an order in which nothing expires.

*Admission* opens a group only if (*) still holds with it. *Consumption* takes a batch only if (*) still holds for what
the batch leaves behind; the case s + bound = next is the familiar one: nothing that would expire is left behind.
For one class that starts now it reads N <= B * (bound + 1): AReaL's admission formula (arXiv 2505.24298, section 5.1).
"""

from collections import Counter
from collections.abc import Iterable, Mapping


def fits(classes: Mapping[int, int], *, groups_per_step: int, bound: int, next_step: int) -> bool:
    """Whether (*) holds; `classes[s]` is the number of groups of class s."""
    return excess(classes, groups_per_step=groups_per_step, bound=bound, next_step=next_step) == 0


def excess(classes: Mapping[int, int], *, groups_per_step: int, bound: int, next_step: int) -> int:
    """How many of the oldest groups must go so that (*) holds."""
    total = most = 0
    for version in sorted(classes):
        total += classes[version]
        most = max(most, total - groups_per_step * max(0, version + bound - next_step + 1))
    return most


def plus(classes: Mapping[int, int], added: Iterable[int]) -> Counter[int]:
    """The classes with one more group for each version of `added`."""
    result = Counter(classes)
    for version in added:
        result[version] += 1
    return result


def minus(classes: Mapping[int, int], removed: Iterable[int]) -> Counter[int]:
    """The classes without one group for each version of `removed`."""
    result = Counter(classes)
    for version in removed:
        result[version] -= 1
        if not result[version]:
            del result[version]
    return result


def without_oldest(classes: Mapping[int, int], whole: Mapping[int, int], count: int) -> Counter[int]:
    """The classes without the `count` oldest of the groups that are whole, whose classes are `whole`."""
    result = Counter(classes)
    for version in sorted(whole):
        taken = min(count, whole[version])
        count -= taken
        result[version] -= taken
    return result
