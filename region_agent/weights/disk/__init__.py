"""The files of a gateway's weight cache: one full state, the chain of deltas after it, and the redo log between them.

`weight_folder` is one job's folder and does the disk jobs that are ordered of it.
`full_state`, `manifest` and `placement` hold the stored state, and `redo_log` makes an update of it atomic.
`stored_publication` keeps complete publications, and `restore` rebuilds the log of publications after a start.
`convert` is the boundary to protobuf. `blocks` and `files` are the byte format and the file system below them. In come
jobs with publications; out come their outcomes and the publications' bytes, proven again. Nothing here decides what is
kept, or knows of readers, links between regions or costs.
"""
