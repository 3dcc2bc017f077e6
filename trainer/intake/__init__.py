"""How trajectories come into the trainer: from the gateway's stream to disk, and then to the ledger.

`gateway` holds the streams to the region's gateway, `frames` decodes, validates and stores frames of trajectories,
`ledger_service` runs the ledger and writes its decisions to the audit, `retention` says how long frames stay on disk,
and `convert` translates between protobuf and the trainer's values. In come frames and messages of workers; out go
leases, acknowledgements and batches. Nothing here knows of torch, gradients or weights: publications and proofs of
weights only pass through.
"""
