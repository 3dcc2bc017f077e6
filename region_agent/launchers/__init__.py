"""Launchers: how an agent starts, watches and stops the processes of jobs on its machines.

`local` starts them as child processes of the agent. In come task files; out come exits and status. A launcher knows
nothing of the coordinator, of plans or of what a process does.
"""
