"""Launchers: how an agent starts, watches and stops the processes of jobs on its machines.

`local` starts them as child processes of the agent. In come the actions of `control.reconcile`; out come the table of
processes and their outcomes. A launcher decides nothing, and knows nothing of the coordinator, of plans or of what a
process does.
"""
