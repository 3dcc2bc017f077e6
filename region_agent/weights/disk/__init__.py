"""The files of a gateway's weight cache: one full state, the chain of deltas after it, and the redo log between them.

`weight_store` holds one job's folder. `full_state`, `manifest` and `placement` hold the
stored state, and `redo_log` makes an update of it atomic. `stored_publication` keeps complete publications, and
`restore` rebuilds the log of publications after a start. `blocks` and `files` are the byte format and the file system
below them. In come publications; out come their bytes, proven again. Nothing here knows of readers, links between
regions or costs.
"""
