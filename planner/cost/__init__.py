"""What a placement takes and costs: the oracle that every method is judged by (`oracle.evaluate`).

`memory`, `generation`, `scoring`, `training` and `network` price one pool, mesh or route; `columns` lists the pools and
meshes that are worth choosing among; `oracle` puts a placement's terms together. Device physics is `planner.device`.
"""
