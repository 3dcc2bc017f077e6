"""What an importer returns: the fleet, and what a reader must know about it."""

from dataclasses import dataclass

from planner.question.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A fleet with its caveats, one sentence each, sorted as found."""

    fleet: Fleet
    left_out: tuple[str, ...] = ()
    """Rows that hold too little to be used."""
    guesses: tuple[str, ...] = ()
    """Figures that nobody published, and what was taken instead."""
