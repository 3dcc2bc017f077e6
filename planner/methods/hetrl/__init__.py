"""HetRL's search (arXiv 2512.12476), re-implemented: successive halving over groupings and sizes, evolution below.

Its five levels are: which tasks share devices (1, `planner.problem.groupings`), how many devices each group has (2,
`group_sizes`), which devices (3, `genome`), which layout (4, `candidate_lists`), and which tasks on which devices (5,
`genome`). `successive_halving` gives budget to groupings and sizes, `evolution` varies placements. `method` has the two
entry points, `settings` all tuned numbers.

The variant `hetrl_bounded` is ours: it also drops arms by a lower bound (`fluid_bounds`) and builds children from what
determines the step time (`guided_moves`). `planner.methods.evaluation_budget` calls the oracle and keeps the best
placement within an evaluation budget. `docs/planner-reimplementations.md` says what is published and what was chosen
here. Nothing here proves a bound on its result.
"""
