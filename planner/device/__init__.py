"""Time and memory of what one device, or one machine's devices, do: the physics that cost model and simulator share.

Both compose it in their own way; it is validated on its own against published profiles (`bench/planner_cost.py`).
"""
