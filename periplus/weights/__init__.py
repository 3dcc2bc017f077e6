"""`periplus weights`: deltas between checkpoint directories, as files. For people; the runtime streams its own.

`commands` imports the rest, and with it numba, only when a command runs.
"""
