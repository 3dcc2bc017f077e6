"""The worker's side of weight updates: from the gateway's stream of publications to the engine's own memory.

`reader` follows the stream, `subscription` says what to ask for next, and `pending_versions` what to write next.
`incoming` and `host_copy` decode and prove a version, `engine_writer` writes it into the engine and checks what the
engine then holds. `version_report` says what became of a version, and `compile` compiles the decoder early. In come
publications; out come the policy that the engine may serve, and a report of each version. Nothing here decides what is
sampled.
"""
