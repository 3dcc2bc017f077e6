"""The files of a gateway's weight cache: one full state, a chain of deltas behind it, and the redo log between them.

`weight_store` holds one job's folder, `full_state` and `manifest` the stored state, `redo_log` makes an update of it
atomic, `stored_publication` keeps complete publications, `restore` reads all of it after a start. In come publications;
out come their bytes, proven again. Nothing here knows of readers, links or costs.
"""
