"""Tuned constants of the exact method in one value.

No setting can make a proof wrong. They decide how fast the search proves its bound: in which order it works, when it
divides a subproblem, and how tight its linear models are. Tolerances for rounding are no settings; they stand in the
modules that compare numbers. `planner.methods.exact.subproblem.candidate_arrays.ProblemArrays` carries the settings to
everything that works on one problem. Unless a field says otherwise, its value was chosen by hand.
"""

from dataclasses import dataclass

from planner.problem.device_classes import MANY_CLASSES

DEFAULT_GAP = 0.01
"""Relative gap at which the search ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSettings:
    """Settings of one search of the exact method; the defaults are those of the product."""

    # --- the search

    max_step_s: float = 1e5
    """Longest step in seconds (28 hours) that the search looks for. If it finds nothing, a second search looks for
    steps up to `IMPOSSIBLE_STEP_S`. A lower limit makes models tighter."""
    program_slice_s: float = 20.0
    """Most seconds of one integer program, after which the caller is asked again whether to go on."""
    program_least_s: float = 0.05
    """Least seconds that an integer program gets when the budget is nearly spent, so that small ones still finish."""
    max_programs: int = 40
    """Most integer programs of one subproblem. After these it stays open, and the proved bound says so."""
    program_gap_divisor: float = 8.0
    """A first integer program of a subproblem may leave open the search's gap divided by this number. It must be above
    1, so that the gap of the program does not use up the gap of the search."""
    program_gap_shrinkage: float = 4.0
    """Divisor by which each further program of a subproblem leaves less open. A few samples are many seconds where a
    table is flat, so the same tolerance could not close such a subproblem."""
    program_gap_shrinks: int = 6
    """Number of programs after which their tolerance no longer shrinks; solvers cannot prove much less."""
    fine_gap: float = 1e-3
    """Relative gap of the search below which a subproblem that had a program keeps nearly equal latency levels apart.
    For wider gaps the difference does not matter, and models with merged levels are smaller."""

    # --- meshes of one pool first

    one_pool_min_classes: int = MANY_CLASSES
    """Fleets with more device classes are first searched with meshes of one pool, because listing pairs is slow."""
    one_pool_programs: int = 1
    """Integer programs after which the search with meshes of one pool ends; its only purpose is an incumbent."""
    one_pool_patience: int = 20
    """Models without a better placement after which the search with meshes of one pool ends."""

    # --- first placements

    first_placements_s: float = 0.15
    """Most seconds for greedy first placements."""
    first_placements_share: float = 0.1
    """Most of the budget, as a share, for greedy first placements."""
    first_placements_groups: int = 3
    """Number of groups that first placements prefer in a grouping."""
    first_placements_groupings: int = 12
    """Groupings for which first placements are made, beside the coarsest and the finest one."""
    first_placements_regions: int = 3
    """Regions of the trainer for which first placements are made, per grouping."""
    greedy_meshes: int = 6
    """Meshes of different size that are tried for each region of the trainer."""
    greedy_batches: int = 6
    """Batches in which the machines of one class are assigned to groups."""
    greedy_latencies: tuple[float, ...] = (1.3, 4.0)
    """Latency of generation that a greedy placement allows, as multiples of the least possible one."""
    repair_added: int = 12
    """Most units that a repair for least dollars adds to a placement."""
    repair_removed: int = 12
    """Most units that a repair for least dollars removes from a placement."""

    # --- when and where a subproblem is divided

    loose_share: float = 0.05
    """Share of a step's samples that a linear relaxation may count wrongly as made before its window is divided."""
    late_share: float = 0.01
    """Share of the step limit by which versions may arrive later than counted before receivers are divided."""
    window_gain: float = 0.25
    """Share of the missing bound that the last division must have brought, else the integer program comes before the
    window is divided again. Least dollars ignore it: many windows cost nearly the same there, and one integer program
    takes as long as thirty relaxations."""
    narrowest_window: float = 1e-4
    """Relative length below which an interval of windows is not divided."""
    narrowest_window_per_gap: float = 4.0
    """An interval shorter than the gap divided by this number is not divided either, if that is less."""
    narrowest_range: float = 1e-4
    """Relative length below which a range of step times, or of seconds of other tasks, is not divided."""
    division_margin: float = 0.2
    """Share of a range that a division of windows or of step times keeps on each side. Without it, halves near the end
    of a range would change almost nothing."""
    others_margin: float = 0.1
    """The same share for a division of the seconds of other tasks."""
    others_below: float = 0.8
    """Where the seconds of other tasks are divided, between the lower end of their range and their value at the point.
    Below 1, neither half contains the point."""
    waits_share: float = 2e-3
    """Share of a path by which scoring may be longer at a point than in the model before its levels are divided."""
    waits_share_usd: float = 1e-2
    """The same share for least dollars, where seconds count only as far as devices make up for them."""

    # --- linear models

    unused: float = 0.1
    """Value up to which a binary or a count at a point of a linear relaxation counts as unused."""
    tangent_error: float = 1e-3
    """Error of a busy time between two neighbouring tangents, as a fraction of a step. Cuts at incumbents remove the
    rest."""
    level_step: float = 1e-4
    """Difference of latency levels, as a fraction of a step, below which a level counts as the next lower one."""
    window_points: int = 48
    """Windows that are tried at once for the least window of a group, in each of two rounds. The second round divides
    one interval of the first into this many."""
    window_tangents: int = 9
    """Tangents of 1 / g on one interval of windows (`planner.methods.exact.relaxation.window_rows`)."""
    window_steepest: float = 0.05
    """Least value of g at the start of an interval, relative to its end; it keeps coefficients of 1 / g moderate."""
    window_short: float = 1e-2
    """Relative length up to which an interval may also get rows with a constant g."""
    window_rough: float = 1e-7
    """Relative error of the common g at the end of a short interval above which rows with a constant g are added."""
    window_shapes: tuple[float, ...] = (0.0, 0.3, 0.7, 1.0)
    """Quantiles of the units' own g, at the start of an interval, for which further rows are added."""
    window_shape_distance: float = 0.05
    """Least difference between two of these values of g."""

    # --- conflicts

    feasibility_s: float = 5.0
    """Seconds of one search that only asks whether there is any placement."""
    conflict_s: float = 25.0
    """Least seconds for finding a smallest conflict, even beyond the budget, unless the caller asks to stop. Without
    one an infeasible problem has no answer."""
    comparison_gap: float = 0.02
    """Relative gap of the search for the best value without a limit, which a conflict names to show how far away the
    limit is."""


DEFAULT_SETTINGS = ExactSettings()
"""Settings of the product."""
