"""The linear model of one subproblem: its optimum is a lower bound on every placement of the subproblem.

`relaxation` puts the model together from families of rows, one module each: generation windows, inventory, transfers of
the critic, dollars. In come the subproblem's arrays; out comes a `LinearModel`. Nothing here solves it or chooses
branches.
"""
