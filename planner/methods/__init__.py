"""The methods that search for a placement, and what they share.

`exact/` proves a bound on its answer. `hetrl/` and `areal_hex/` re-implement two published searches, and `opening/`
finds a first placement quickly. `portfolio` lists all methods and combines several of them. `obstacles` finds conflicts
without a search, `idle_pools` removes devices that do nothing, and `evaluation_budget` counts what a heuristic spends.

In come cost tables and a budget; out comes an `Outcome`: the best placement found with its bound, or a conflict. A
method reads no file and has no clock of its own.
"""
