"""The ways to search for a placement, and what they share.

`portfolio` runs several side by side, `exact/` proves its answer, `hetrl/` and `areal_hex/` carry out the two papers,
`baselines/` are the simple ones that all are compared with; `obstacles` finds conflicts without a search and
`evaluation_budget` counts what a heuristic spends. In come a problem and a budget; out comes the best placement found,
with its bound. A method knows no file, no command and no clock of its own.
"""
