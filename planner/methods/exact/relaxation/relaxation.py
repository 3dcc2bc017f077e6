"""The linear model of one subproblem with its variables by name, and what a point of it means.

Variables, with all times in units of `scale_s` so that rows have entries of about 1:

- tau (`step`): seconds of one step.
- T (`train`): the longest training of any group, transfers of samples included.
- S (`score`): the longest scoring of any group, transfers of samples included.
- y (`window`): generation's window as a region without lag sees it, if generation has devices of its own.
- x_m in {0, 1} (`meshes`): whether mesh m is chosen, for each group that trains.
- n_u in {0, 1, 2, ...} (`units`): number of units of kind u, for each group without training.

`planner.methods.exact.relaxation.building` makes a `Relaxation`. Each family of rows is a function in a module of its
own: it takes the relaxation and adds rows and auxiliary variables to `model`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.answer.placement import Group, Placement
from planner.methods.exact.program.linear_model import Bools, Floats, Ints, LinearModel
from planner.methods.exact.relaxation.critic_transfers import CriticTransfers
from planner.methods.exact.relaxation.row_builders import add_weighted_at_most, busy_time_variable
from planner.methods.exact.relaxation.variables import MeshVariables, Terms, UnitVariables
from planner.methods.exact.relaxation.window_rows import Interval, looseness
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays, TransferArrays
from planner.methods.exact.subproblem.remaining_candidates import RemainingCandidates, Subproblem
from planner.problem.groupings import Tasks
from planner.problem.workload import Task

_LATER = 1e-6
"""Relative increase of a window that is read from a point, because solvers stop a little short of a jump in a table."""


@dataclass(slots=True, kw_only=True)
class Relaxation:
    """The model of one subproblem. It does not change after `building.build_relaxation` has returned it."""

    data: ProblemArrays
    subproblem: Subproblem
    candidates: RemainingCandidates
    """Candidates that are left in the subproblem, with bounds on its phases."""
    most_s: float
    """Upper bound on the step time in seconds: no placement above it is of interest."""
    low_s: float
    """Lower bound on the step time in seconds, known without the model."""
    scale_s: float
    """Seconds of one unit of time in the model."""
    cuts: Sequence[tuple[Task, float]]
    """(Task, rate in samples per second) at which further tangents are added."""
    is_fine: bool
    """Whether latency levels stay separate; otherwise nearly equal ones are merged."""
    model: LinearModel
    step: int
    """Variable tau."""
    train: int
    """Variable T."""
    score: int
    """Variable S."""
    meshes: dict[Tasks, MeshVariables] = field(init=False, default_factory=dict)
    """Meshes and binaries x of each group with training."""
    units: dict[Tasks, UnitVariables] = field(init=False, default_factory=dict)
    """Units and counts n of each group without training."""
    scoring: dict[Tasks, Terms] = field(init=False, default_factory=dict)
    """Time of scoring, transfers included, of each group without training, as a linear expression."""
    window: int | None = field(init=False, default=None)
    """Variable y; None if generation takes turns with training."""
    interval: Interval | None = field(init=False, default=None)
    """Interval of windows on which the rows of generation hold; None without `window`."""
    generating: UnitVariables | None = field(init=False, default=None)
    """Units that generate apart from training; None without `window`."""
    receivers: list[int] = field(init=False, default_factory=list)
    """Binaries of remote regions that generate, where it matters which ones receive versions."""
    critic: CriticTransfers | None = field(init=False, default=None)
    """Transfers of the critic's weights, if they travel."""
    _used: dict[tuple[int, ...], int] = field(init=False, default_factory=dict)
    """Binaries by the set of variables of which they say whether any is used."""

    # --- for the builders of rows

    @property
    def transfers(self) -> TransferArrays:
        """Transfers between the trainer's region and each other region."""
        return self.data.transfers(self.subproblem.trainer_region)

    @property
    def longest(self) -> float:
        """Upper bound on a busy time, in units of `scale_s`."""
        return self.most_s / self.scale_s

    def cuts_of(self, task: Task) -> list[float]:
        """Return the rates at which the task gets further tangents, in steps' worth of samples per unit of time."""
        return [rate / self.data.samples * self.scale_s for of, rate in self.cuts if of is task and rate > 0]

    def busy_time(self, at: Ints, rates: Floats, longest: float, cuts: Sequence[float] = ()) -> int:
        """Add a variable for the busy time of a task (`row_builders.busy_time_variable`) and return its index."""
        return busy_time_variable(self.model, at, rates, longest, cuts, error=self.data.settings.tangent_error)

    def used(self, units: UnitVariables, region: int) -> int:
        """Return the binary b that is 1 if any of the group's units in the region is used; it is added at first use.

            for each class c in the region:   sum over u in c of (gpus_u / gpus_c) n_u <= b

        Valid, since units never hold more than all devices of a class: the left side is at most 1.
        """
        of, here = units.of, units.at[units.of.region == region]
        # Several families of rows ask for the same region; they share one binary.
        key = tuple(here.tolist())
        if key in self._used:
            return self._used[key]
        binary = self._used[key] = self.model.variable(0.0, 1.0, whole=True)
        classes = of.block.at_class[of.rows]
        for c in np.unique(classes[of.region == region]).tolist():
            mine = np.flatnonzero(classes == c)
            share = of.gpus[mine] / self.data.classes[c].num_gpus
            add_weighted_at_most(self.model, units.at[mine], share, [(binary, 1.0)])
        return binary

    def forbid(self, at: Ints, which: Bools) -> None:
        """Fix the variables at the positions of a mask to 0."""
        for x in at[which].tolist():
            self.model.high[x] = 0.0

    # --- what there is to choose

    def mesh_choices(self) -> Iterator[tuple[int, Group]]:
        """Yield (variable, group) of each candidate mesh."""
        for chosen in self.meshes.values():
            for x, i in zip(chosen.at.tolist(), chosen.of.rows.tolist(), strict=True):
                yield x, chosen.of.block.columns[i].group

    @property
    def others_range_s(self) -> tuple[float, float]:
        """Range in seconds of what other tasks take of generation's group."""
        return self.candidates.least.others_s, min(self.subproblem.others_s[1], self.most_s)

    @property
    def window_range_s(self) -> tuple[float, float]:
        """Range of generation's window in seconds."""
        return self.candidates.window_s

    # --- what a point means

    def placement(self, values: Floats) -> Placement:
        """Return the placement of a point of the model; counts are rounded to whole numbers."""
        groups = []
        for tasks in self.subproblem.grouping:
            if tasks in self.meshes:
                chosen = self.meshes[tasks]
                # Exactly one binary is 1 in an integer point. In a relaxed point this is the likeliest mesh.
                row = int(chosen.of.rows[int(values[chosen.at].argmax())])
                groups.append(chosen.of.block.columns[row].group)
                continue
            units = self.units[tasks]
            # Whole counts of units, without those that are 0.
            counts = np.rint(values[units.at]).astype(int)
            pools = [
                replace(units.of.block.columns[i].unit, num_units=num)
                for i, num in zip(units.of.rows.tolist(), counts.tolist(), strict=True)
                if num > 0
            ]
            groups.append(Group(tasks=tasks, pools=tuple(pools)))
        return Placement(groups=tuple(groups))

    def rates(self, values: Floats) -> list[tuple[Task, float]]:
        """Return (task, samples per second at a point) of each task apart from training; tangents help there."""
        found = []
        for tasks, units in sorted(self.units.items()):
            for column, task in enumerate(tasks):
                if task is not Task.GENERATION or not self.data.is_sync:
                    rates = units.of.block.rates[units.of.rows, column]
                    found.append((task, float(values[units.at] @ rates)))
        return found

    def window_at(self, values: Floats) -> float | None:
        """Return generation's window in seconds at a point, or None if there is none."""
        return None if self.window is None else float(values[self.window] * self.scale_s) * (1 + _LATER)

    def looseness(self, values: Floats) -> float:
        """Return the share of a step's samples that the model counts as made at a point although they are not."""
        window_s = self.window_at(values)
        if window_s is None or self.interval is None or self.generating is None:
            return 0.0
        counts = np.maximum(values[self.generating.at], 0.0)
        region = self.subproblem.trainer_region
        return looseness(self.data, self.generating, self.interval, counts, region, window_s)

    def num_receivers(self, values: Floats) -> int:
        """Return the number of remote regions that receive versions at a point, rounded up."""
        return int(np.ceil(sum(values[u] for u in self.receivers) - self.data.settings.unused))
