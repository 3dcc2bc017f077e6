"""Result of an importer: the fleet, and what a reader must know about it."""

from dataclasses import dataclass

from planner.problem.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A fleet with its caveats, one sentence each."""

    fleet: Fleet
    left_out: tuple[str, ...] = ()
    """One sentence for each thing that was left out because the tables hold too little."""
    guesses: tuple[str, ...] = ()
    """Figures that are not published, and what was chosen instead."""
