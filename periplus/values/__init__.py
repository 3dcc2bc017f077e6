"""The runtime's values: policies, trajectories, tasks, records, weights, and their digests.

They are frozen, compare by content and check themselves when they are made. Everything else imports them; they import
no service, no file format beyond safetensors, and no network.
"""
