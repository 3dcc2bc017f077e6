"""Turns the text of a configuration file into a validated, frozen value, or into an error that names the wrong key.

Texts come in; values come out. `loading` has the base class of all configurations, overrides and validation,
`yaml_text` reads and writes YAML within limits, `file_kinds` recognises which kind of file a user gave, and
`finite_json` writes JSON that every parser accepts, and `secret_names` says which names secrets have. Nothing here
knows the keys of a job, except the few by which `file_kinds` recognises a file without a schema.
"""
