"""The ledger: who may produce which sample, which results are accepted, and which batch is trained on next.

Events come in (a worker joined, a result arrived, the trainer wants a batch), and effects go out (send these leases,
train on this batch). `machine` is the entry. `workers`, `results`, `leasing`, `consumption`, `drops` and `evaluation`
handle its events; `acceptance` says which results are accepted, `staleness_window` is the arithmetic of the staleness
bound, `state` holds the data, and `values` defines events and effects. Everything here is pure: no clock, socket, file
or random source, and no knowledge of tokens, gradients or weights.
"""
