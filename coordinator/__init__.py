"""The control plane: one coordinator process knows the regions and jobs, and decides what runs where.

Agents' reports and operators' calls come in over gRPC; the tasks that each region should run, link probes and
certificates of trainers go out. `machine` decides as a pure function, `writer` applies its decisions, `service` and
`convert` translate the protocol, `client` and `demo` are an operator's side. Weights and trajectories never pass here,
and the coordinator imports neither torch nor another service.
"""
