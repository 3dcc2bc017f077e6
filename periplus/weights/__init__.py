"""`periplus weights`: commands that write deltas between checkpoint directories to files, and apply them.

They are for people: a running job streams its own deltas. `operations` does the work, `checkpoint` reads and plans
directories, `reading` inspects and verifies files, `replay` applies a delta's parts to files on disk, `files` is the
format of a delta's file, `output` makes results appear whole or not at all, and `report` and `progress` are for people.
`commands` imports the rest, and numba with it, only when a command runs.
"""
