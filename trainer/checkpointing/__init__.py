"""Checkpoints of a run, from which a restarted trainer continues, and the model that a finished run exports.

In come the model, the learner's state, the open groups of the ledger and the position of the audit. Out goes a
directory that is either complete or ignored. Nothing here may know of workers, leases or links.

    checkpoint     writes, verifies, lists and removes checkpoint directories
    checkpointer   records each checkpoint in the audit, and gives up frames that no restart needs
    export         writes the final model as transformers loads it
"""
