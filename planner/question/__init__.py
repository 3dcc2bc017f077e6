"""What the planner is asked: hardware, fleet, architectures, workload, goal. Plain values; loaders are elsewhere."""
