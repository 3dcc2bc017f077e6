"""Re-planning: change a running plan after a link, the inventory or a region has changed, if it is worth it.

A running placement and a new fleet go in; a new placement comes out, with the devices that move, what moving costs, and
what is still proved (`replanner.Replanner`). The package knows nothing about jobs, agents or how a plan is carried out.
"""
