"""Tuned numbers of the opening, in one place. All were chosen by hand. Only `SETTINGS` is used."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningSettings:
    """Settings of the opening descent and of the estimates that it starts from."""

    # ---- descent over groupings (`greedy_descent`)

    first_groupings: int = 4
    """Number of groupings that are opened at first."""
    groupings_per_first: int = 40
    """One more grouping is opened at first for each of so many groupings of the problem."""
    max_groups_of_many_classes: int = 2
    """Largest number of groups of a grouping that is estimated in a fleet of many classes."""
    assigned_genomes: int = 4
    """Number of first placements of a grouping that the device assignment proposes."""
    drawn_genomes: int = 8
    """Number of first placements of a grouping that are drawn at random."""
    children: int = 32
    """Number of children that are evaluated in one step."""
    guided_share: float = 0.6
    """Share of the children that are built from what determines the step time."""
    max_failures: int = 3
    """Number of steps without improvement after which a grouping rests."""

    # ---- assignment of classes to the groups of one grouping (`device_assignment`)

    mesh_shares: tuple[float, ...] = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1.0)
    """Shares of a class that a mesh of one pool gets."""
    mesh_shares_of_many_classes: tuple[float, ...] = (1 / 3, 1.0)
    """The same for fleets of many classes."""
    pair_shares: tuple[tuple[float, float], ...] = ((1.0, 1.0), (1 / 3, 1.0), (1.0, 1 / 3))
    """Shares of two classes that a mesh of two pools gets."""
    batches_per_class: int = 6
    """Number of batches in which the devices of a class are assigned to groups without training."""
    max_batches: int = 48
    """Largest number of batches of all classes together."""
    generation_slowdowns: tuple[float, ...] = (1.0, 1.8)
    """Factors by which generation counts as slower than it is when devices are assigned, because its window is shorter
    than a step."""
    least_training_share: float = 0.15
    """Training speed of a class, as a share of that of the strongest class, below which it gets no mesh."""
    max_training_classes: int = 4
    """Largest number of classes, strongest first, that may get a mesh."""
    near_share: float = 0.25
    """Share of the longest sample's seconds up to which the transfer of a version hardly matters."""
    max_combinations: int = 2000
    """Largest number of combinations of meshes that are estimated."""
    pair_layouts: int = 4
    """Number of meshes of two classes that are tried on the same devices, since the fastest is known for one class
    only."""
    max_alike: int = 2
    """Largest number of proposals with the same devices for meshes."""

    # ---- rough estimate of all groupings (`grouping_estimates`)

    rough_batches_per_class: int = 3
    """Number of batches in which the devices of a class are assigned in the rough estimate."""


SETTINGS = OpeningSettings()
"""The settings that the opening uses."""
