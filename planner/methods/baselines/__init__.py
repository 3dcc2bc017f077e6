"""Baselines that the searches are compared with: static layouts of other systems, random search, a genetic algorithm.

Each family of placements is written down in the docstring of its module: `verl` (`verl_like`), `streamrl`
(`streamrl_like`), `random` (`random_search`), `genetic`. This was done before anything was compared. All are evaluated
by the same oracle and search the plan space or a named part of it.
"""
