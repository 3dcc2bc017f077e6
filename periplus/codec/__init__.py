"""Codecs convert between values and bytes, without sockets, torch or protobuf.

`trajectory` and `logprobs` code finished rollouts, `files` codes bundles of small files, `weights/` codes model weights
as deltas. `columns` and `zstd` are shared primitives. `frame` is an envelope with a checksum for payloads that are
stored or relayed, and `registry` maps the codec ids of the wire to decoders. Decoders treat their input as hostile:
they raise CorruptFrame, and bound memory before they allocate it.
"""
