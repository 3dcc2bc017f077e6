"""The weight cache of a gateway: a job's publications on disk, and what the gateway derives from them for readers.

In come complete publications and readers' versions; out go records. What decides is pure and synchronous: `machine` is
the whole of it, made of `held_versions` (which versions are here), `held_transitions` (what is written, applied and
given up), `takeovers` (how the copy follows the gateway above), and `derivations`, `orders` and `reader_routes` (what a
reader is sent). It orders disk jobs and gives notices, which are values (`jobs`). Around it is the shell:
`weight_cache` is what the gateway calls, `executor` has the jobs done one at a time and states who may touch what,
`streams` and `derived` send records to readers, `changes` computes folds and full states span by span, `chain` reads
the links of the chain, `notice_log` writes the notices to the log, and `disk` keeps the files. Everything read from
disk is verified again: a disk is trusted as little as a peer. Nothing here knows of trajectories, leases or
connections.
"""
