"""The opening: quick heuristics that find a good first placement before the searches begin.

`grouping_estimates` ranks the groupings, `device_assignment` assigns device classes to the groups of one grouping,
`greedy_descent` improves the result, and `settings` has all tuned numbers. In come cost tables; out come placements
and estimates. Only the portfolio uses it. Nothing here proves anything.
"""
