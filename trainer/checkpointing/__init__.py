"""Checkpoints of a run: what a restart finds on disk, and the model that a finished run exports.

`checkpoint` is the format of one checkpoint's directory, `checkpointer` decides when one is written and which are kept,
`export` writes the final model for transformers. In come the learner's state, the ledger's state and the journal's
position; out goes a directory that is renamed into place when it is whole. Nothing here knows of workers, leases or
links.
"""
