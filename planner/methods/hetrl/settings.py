"""Tuned numbers of HetRL's search, in one place.

HetRL's paper does not publish them: all were chosen by hand (docs/planner-reimplementations.md), where no other reason
is given. They do not depend on the problem. Only `SETTINGS` is used.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HetrlSettings:
    """Settings of the search `hetrl`, of its variant `hetrl_bounded`, and of what the opening borrows from them."""

    # ---- levels 1 and 2: groupings and size vectors (`method`, `successive_halving`, `group_sizes`)

    least_groupings: int = 48
    """Number of groupings with which the bounded search starts at least, best bounds first."""
    evaluations_per_grouping: int = 40
    """Evaluations of the budget for each further grouping of the bounded search. A small budget is therefore spent on
    the groupings with the best bounds instead of a first look at all."""
    max_size_vectors: int = 32
    """Largest number of size vectors that one grouping halves at a time, and that it keeps."""
    max_failed_size_vectors: int = 8
    """Number of size vectors without a valid placement from which a grouping is given up: its tasks probably do not fit
    together."""
    hopeless_bound: float = 1e12
    """Bound in the objective's unit from which groupings count as equally bad, those in which nothing fits among
    them."""
    training_work: float = 3.0
    """Work per parameter of training in the first size vector: a forward and a backward pass."""
    scoring_work: float = 1.0
    """Work per parameter of scoring in the first size vector: a forward pass."""
    generation_work: float = 3.0
    """Work per parameter of generation in the first size vector. Its arithmetic is a forward pass, but decoding reaches
    about a third of the rate of the other tasks."""
    uniform_every: int = 4
    """One in this many size vectors is drawn uniformly; the others are drawn around the groups' work."""
    size_sigma: float = 0.7
    """Standard deviation of the logarithm of a group's size around its work."""
    idle_octaves: float = 4.0
    """For goals in dollars, the part of the fleet in use is 2 to a random power between minus this and 0."""

    # ---- levels 3 to 5: evolution of placements (`evolution`, `genome`)

    population: int = 12
    """Number of individuals that survive a generation."""
    children: int = 8
    """Number of children in one generation."""
    tries: int = 6
    """Largest number of attempts to make a child that is not known yet."""
    swap_share: float = 0.45
    """Share of random children that swap devices between groups."""
    layout_share: float = 0.45
    """Share of random children with another layout of one group. The rest are mutations."""
    best_layout_share: float = 0.7
    """Share of the layouts of a first individual that are the best of their candidate list."""
    first_layouts: int = 12
    """Number of layouts, best first, from which the other layouts of a first individual are drawn."""
    next_layout_odds: float = 0.35
    """Success probability of the geometric distribution from which the place of another layout in its list is drawn."""
    moves_per_fleet: int = 512
    """The least number of devices that a move changes is the fleet's number over this, but at least 1."""

    # ---- guided children of `hetrl_bounded` (`evolution`, `guided_moves`)

    guided_share: float = 0.5
    """Share of the children that are built from what determines the step time."""
    give_back_share: float = 0.5
    """Share of guided children that give devices back, for goals in dollars."""
    reassign_idle_share: float = 0.5
    """Share of guided children that take an idle class out of generation, where one idles."""
    more_generators_share: float = 0.8
    """Share of guided children for a long window that give generation more devices; the others change its layout."""
    donor_noise: tuple[float, float] = (0.7, 1.3)
    """Range of the random factors on busy seconds by which the group that gives devices is chosen."""
    give_back_noise: tuple[float, float] = (0.6, 1.4)
    """Range of the random factors on busy seconds by which the group that gives devices back is chosen."""

    # ---- candidate lists (`candidate_lists`)

    max_meshes: int = 12
    """Largest number of meshes in a candidate list."""
    paired_pools: int = 4
    """Number of pools of each class, fastest first, that are tried in meshes of two pools."""
    max_two_pool_meshes: int = 4
    """Largest number of meshes of two pools in a candidate list."""

    # ---- fluid lower bounds (`fluid_bounds`)

    fleet_parts: tuple[int, ...] = (0, 1, 64, 32, 20, 14, 11)
    """Number of parts into which the fleet is divided when size vectors are enumerated, by number of groups, such that
    the number of vectors stays moderate."""
    max_device_counts: int = 65_536
    """Largest number of device counts for which a bound is computed one by one. In larger fleets counts are rounded up
    to multiples, which leaves a bound valid because more devices never take longer. Tables of larger fleets took
    gigabytes before."""
    phase_times: int = 240
    """Number of times at which the samples of a phase are counted."""
    phase_range: float = 2000.0
    """Last of these times as a multiple of the first sample's time."""


SETTINGS = HetrlSettings()
"""The settings that the search uses."""
