"""The operator's side: commands that talk to a coordinator over gRPC, and those that read a run's directory.

In come words of a command line; out come requests, tables and exit codes. Nothing here decides anything about a job,
and nothing here is imported by the coordinator.
"""
