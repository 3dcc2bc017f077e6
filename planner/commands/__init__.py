"""`periplus plan`, `periplus simulate` and `periplus fleet`: questions to the planner, without starting anything.

Data goes to standard output, everything else to standard error. Exit codes: 2 for input that cannot be understood, 4
if no placement holds everything that was asked, 8 if none was found in time, 130 after an interrupt, with the best so
far printed.
"""

from planner.commands.fleets import fleet
from planner.commands.plans import plan
from planner.commands.simulate import simulate

__all__ = ["fleet", "plan", "simulate"]
