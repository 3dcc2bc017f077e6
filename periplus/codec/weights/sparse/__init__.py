"""Coding of one sparse span: where elements changed and by how much.

`span` composes the parts, `gaps` and `flags` code the positions, `steps` the sizes of changes, `choice` chooses the
level map that codes them in fewest bits. Two states of a span come in, and one stack of symbols goes out. Nothing here
knows of payloads, parts or signatures.
"""
