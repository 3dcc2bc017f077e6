"""The agent's side of the session with the coordinator: what it reports, and which tasks it is told to run.

`session` holds the stream, `reconcile` decides which processes to start and stop, `inventory` says what the machine
offers (`accelerators` by NVML, `declared_devices` of a file, `engines`), `links` measures links, `certificates`
requests certificates for trainers, `conclusion` writes what a dead trainer could not, and `convert` translates
between protobuf and values. In come the coordinator's desired tasks and probe orders; out go starts, stops, reports and
measurements. Nothing here reads trajectories or weights.
"""
