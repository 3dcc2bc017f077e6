"""Checkpoints of a run, from which a restarted trainer continues, and the model that a finished run exports.

In come the model, the learner's state, the open groups of the ledger and the position of the audit. Out goes a
directory that is either complete or ignored. Nothing here may know of workers, leases or links.

    checkpoint     writes, lists and removes checkpoint directories
    restoration    verifies a checkpoint and loads it, on any number of ranks
    manifest       the file that makes a directory a checkpoint
    parts          the files with the rows of tensors
    learner_state  the learner's state as a tree and the tensors in it
    checkpointer   records each checkpoint in the audit, and gives up frames that no restart needs
    export         writes the final model as transformers loads it
"""
