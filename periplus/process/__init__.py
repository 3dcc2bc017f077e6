"""A process and its machine: start and stop, task files, threads, logs, and what a full disk means.

`lifecycle` handles signals and exit codes, `task_process` is the frame of every worker process, `telemetry` writes
logs, `disk` reads the operating system's refusals, `threads` runs threads that may be left behind. Nothing here knows
jobs.
"""
