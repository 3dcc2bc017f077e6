"""The way of trajectories into the trainer: from the gateway's stream to the ledger, and to disk on the way.

`gateway` speaks with the region's gateway, `frames` decodes and checks what it delivers, `ledger_service` keeps the
store and the journal and asks the ledger for each decision, `retention` says how long frames stay on disk. In come
frames of trajectories; out go leases, commits and batches. Nothing here knows of torch, gradients or weights.
"""
