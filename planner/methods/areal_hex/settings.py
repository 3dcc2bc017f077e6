"""Tuned numbers of AReaL-Hex's search, in one place.

The paper does not publish them: all were chosen by hand (docs/planner-reimplementations.md). Only `SETTINGS` is used.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ArealHexSettings:
    """Settings of the two-phase search that re-implements AReaL-Hex."""

    # ---- phase 1: strategy and assignment (`method`, `strategy`)

    prepare_share: float = 0.4
    """Share of the budget after which no further candidate meshes are computed."""
    milp_s: float = 2.0
    """Largest number of seconds of one MILP; they take milliseconds."""
    milp_gap: float = 1e-3
    """Relative gap at which a MILP ends."""
    bracket_factor: int = 4
    """The first step time that is tried is this many times that of the fastest mesh; each further one, until a strategy
    attains it, is this many times the last."""
    bisection_steps: int = 9
    """Number of bisection steps over the step time, which is then known to a few thousandths of the first bracket."""
    strategy_bisection_steps: int = 10
    """Number of bisection steps for the step time that one chosen strategy attains."""
    pair_counts: int = 2
    """Number of device counts of each kind, largest first, that are tried in meshes of two kinds."""

    # ---- phase 2: graph partitioning (`partition`)

    max_nodes: int = 256
    """Number of graph nodes beyond which machines are bundled."""
    part_range: tuple[float, float] = (0.1, 0.9)
    """Range of the training pool's share of the graph."""
    chosen_kind_weight: float = 2.0
    """Weight of a device of phase 1's training kinds when the part that trains is chosen; other devices weigh 1."""
    small_moves_per_machine: int = 4
    """The smallest move of devices between the pools is a machine's devices over this."""
    meshes_tried: int = 2
    """Number of meshes, least busy first, for which rollout units are looked for."""


SETTINGS = ArealHexSettings()
"""The settings that the search uses."""
