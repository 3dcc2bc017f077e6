"""The worker's side of weight updates: from a gateway's stream to the engine's own memory.

`reader` follows the stream, `subscription` says what to ask for, `pending_versions` what to apply next, `incoming` and
`host_copy` decode and prove a version, `engine_writer` puts it into the engine and checks what the engine then holds.
In come publications; out come policy versions that the engine has. Nothing here knows of leases or samples.
"""
