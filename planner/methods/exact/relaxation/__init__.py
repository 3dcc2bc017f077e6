"""The linear model of one subproblem: its optimum is a lower bound on every placement of the subproblem.

`building` puts the model together, and `relaxation` names its variables and says what a point of it means. Each family
of constraints is a module that adds rows: groups that train (`mesh_rows`), busy times (`unit_rows`), scoring,
generation and its window, receivers of versions, the critic's transfers, inventory, the operator's rules on regions,
and dollars. In come the subproblem's arrays; out comes a `LinearModel`. Nothing here solves it or chooses branches.
"""
