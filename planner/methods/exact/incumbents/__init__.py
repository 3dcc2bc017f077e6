"""Valid placements that the exact method starts from and improves: they are upper bounds.

`greedy` makes first placements, `rounding` makes one from a point of a relaxation, `repair` fixes one for least
dollars. In come candidates and points; out come placements that the oracle has evaluated. Nothing here proves a bound.
"""
