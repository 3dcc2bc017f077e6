"""What every Periplus process needs from its machine: start and stop, logs, disk errors, and pauses between attempts.

Signals, task files and errors of the operating system come in; stop events, exit codes, log lines and PeriplusErrors go
out. `lifecycle` waits for signals and writes ready files, `task_process` runs the work of a trainer or rollout worker,
`guard` ends what a killed task has started, `telemetry` writes logs and registers metric names, `disk` classifies disk
errors and replaces files as a whole, `backoff` says how long to wait before another attempt, `host_limits` knows which
cores and memory it may use, and `threads` starts threads that a process need not wait for. Nothing here knows what a
job does.
"""
