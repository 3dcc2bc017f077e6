"""The weight cache of a gateway: a job's publications on disk, and what it derives from them for readers.

`weight_cache` is the async shell. `store` holds one job's folder: a proven full state (`copy`, `manifest`, `redo`), the
chain of deltas after it and the bundle (`kept`, `link`). `cost` chooses how a reader gets to the newest version,
`changes` computes folds and full states span by span, `derived` streams them to readers while they are being made.
`files`, `blocks` and `placement` are the file formats below. Everything read from disk is verified again: a disk is
trusted as little as a peer.
"""
