"""Environments of several turns on a worker: the runtime's own, and a user's own in processes of their own.

    building   from the job's `environment` section to what opens episodes
    pool       the processes: one episode at a time each, started when needed, replaced when they hang or crash
    process    the program of such a process, which imports the user's class

In come problems and turns of the model as text; out go messages and rewards, and failures as types. Nothing here knows
of leases, engines or tokens.
"""
