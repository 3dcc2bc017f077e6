"""Lists of what a group of tasks may run on: the columns of the integer program.

`pool_layouts` lists the layouts that fit into memory, `meshes` and `mesh_lists` the meshes that no other one dominates,
`columns` collects them with the units of groups without training, `dominance` is the Pareto filter. In come cost
tables; out come candidates with their costs. Nothing here chooses between candidates.
"""
