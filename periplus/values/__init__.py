"""The values that all parts of the runtime exchange: policies, trajectories, tasks, records, weights and digests.

Values are frozen and compare by content. Every other room imports this one. `policy`, `trajectory`, `trajectories`,
`task`, `record` and `weight_state` define values; `digest` hashes weights, `probe_prompts` makes the prompts that check
an engine, and `transport_keys` has the keys of frames. No service and no network is imported here, and safetensors is
the only file format of weights that is known (`safetensors_format`).
"""
