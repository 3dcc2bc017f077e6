"""The agent's side of the session with the coordinator: what it reports, and what it is told to run.

`session` holds the stream, `reconcile` decides which processes to start and stop, `inventory` and `links` measure
machines and links, `certificates` asks for trainers' certificates, `conclusion` writes what a dead trainer could not.
In come wishes of the coordinator; out go starts, stops and reports. Nothing here reads trajectories or weights.
"""
