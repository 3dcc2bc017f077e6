"""Coding of one sparse span: where elements changed and by how much.

`span` composes the parts, `gaps` and `flags` code the positions, `steps` the sizes of changes, `choice` chooses the
level map that codes them in fewest bits. In come two states of a span; out comes one stack of symbols. Nothing here
knows of payloads, parts or signatures.
"""
