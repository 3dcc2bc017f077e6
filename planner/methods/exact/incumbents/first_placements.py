"""Greedy first placements for a few groupings and regions of the trainer, so that a search has an incumbent at once."""

from collections.abc import Iterator, Sequence

from planner.answer.placement import Placement
from planner.methods.exact.incumbents.greedy import greedy
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.problem.groupings import Grouping
from planner.problem.workload import Task


def first_placements(data: ProblemArrays, every: Sequence[Grouping]) -> Iterator[Placement]:
    """Yield greedy placements, the most promising groupings and regions first; they are not evaluated.

    `every` are the groupings of the problem, those with fewest groups first.
    """
    settings = data.settings
    # The finest and the coarsest grouping, then those with about as many groups as good plans have.
    simple = sorted(every, key=lambda each: (abs(len(each) - settings.first_placements_groups), each))
    for grouping in dict.fromkeys((every[-1], every[0], *simple[: settings.first_placements_groupings])):
        actor = next(tasks for tasks in grouping if Task.ACTOR_TRAINING in tasks)
        for trainer_region in _fastest_regions(data, actor)[: settings.first_placements_regions]:
            yield from greedy(data, grouping, trainer_region)


def _fastest_regions(data: ProblemArrays, actor: tuple[Task, ...]) -> list[int]:
    """Return the regions that may train the actor, the one with the fastest mesh first."""
    block = data.meshes(actor)
    regions = {int(region) for region in block.source_region}
    return sorted(regions, key=lambda region: float(block.busy_s[block.source_region == region].min()))
