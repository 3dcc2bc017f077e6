"""`periplus weights`: commands that write deltas between checkpoint directories to files, and apply them.

They are for people: a running job streams its own deltas. `operations` does the work, `checkpoint` reads and plans
directories, `files` is the format of a delta's file, `output` makes results appear whole or not at all. `commands`
imports the rest, and numba with it, only when a command runs.
"""
