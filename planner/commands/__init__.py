"""The commands `periplus plan`, `periplus simulate` and `periplus fleet`, which start no process of a job.

`plans`, `simulate` and `fleets` define the commands. `options` turns a command line into a problem, `run` searches it
with time budgets, `background_search` keeps a search interruptible, and `output` reads plans and prints answers. In
come arguments and files. The answer goes to standard output, everything else to standard error.

Exit codes: 2 for input that cannot be understood, 4 if no placement satisfies all constraints, 8 if none was found in
time, 130 after an interrupt, once the best answer so far is printed.
"""

from planner.commands.fleets import fleet
from planner.commands.plans import plan
from planner.commands.simulate import simulate

__all__ = ["fleet", "plan", "simulate"]
