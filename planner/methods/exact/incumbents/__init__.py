"""Valid placements that the exact method starts from and improves: they are upper bounds.

`first_placements` makes some with `greedy`, `rounding` makes one from a point of a relaxation, `repair` fixes one for
least dollars. In come candidates and points; out come placements for the oracle to judge. Nothing here proves a bound.
"""
