"""Integer programs and their solver, without any knowledge of planning.

`linear_model` is a mixed-integer linear model as plain arrays, `ortools_solver` is the only module that calls OR-Tools.
In come rows and bounds; out come a point and a proven lower bound.
"""
