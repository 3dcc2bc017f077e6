"""A fleet of the benchmark, with the figures in it that nobody published."""

from dataclasses import dataclass

from planner.problem.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWithGuesses:
    """A fleet, with a sentence for each figure that is not published, and what was chosen instead."""

    fleet: Fleet
    guesses: tuple[str, ...]
