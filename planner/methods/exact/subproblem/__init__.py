"""One subproblem of the branch and bound tree before any model is built: which candidates are left, and cheap bounds.

`candidate_arrays` lays out a problem's candidates, `reachable_candidates` those that one trainer's region can use,
`remaining_candidates` those below a time limit; `mesh_lower_bounds` and `rent_lower_bounds` bound a subproblem without
a model. In come cost tables and a subproblem; out come arrays and bounds. Nothing here calls a solver.
"""
