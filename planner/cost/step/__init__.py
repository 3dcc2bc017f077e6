"""The step time and dollars of one whole placement, from the costs of its parts.

`fixed_terms` are the terms that do not depend on which pools generate, `generation_window` finds the least time in
which those pools make a step's samples, `step_estimate` names every lower bound and takes the largest. In come a
placement and cost tables; out comes an estimate. Nothing here searches.
"""
