"""The planner: a pure library from a fleet and a workload to a plan. No sockets, clocks or files."""
