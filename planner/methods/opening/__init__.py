"""The opening: quick heuristics that find a good first placement before the searches begin.

`grouping_estimates` ranks the groupings, `device_assignment` assigns device classes to the groups of one grouping,
`greedy_descent` improves the result. In come cost tables; out come placements and estimates. The portfolio and HetRL's
bounded variant use it; nothing here proves anything.
"""
