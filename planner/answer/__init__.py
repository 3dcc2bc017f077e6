"""Results of the planner as plain values: placements, their evaluations, and outcomes of searches.

A placement says which devices run which task with which parallelism. An evaluation is what the oracle predicts of it.
An outcome is what a search returns. The values know nothing of how they were found.
"""
