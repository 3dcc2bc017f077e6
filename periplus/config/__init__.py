"""From the text of a configuration file to a validated, frozen value, and errors that name the key.

`loading` has the base class of all configurations, overrides and checks; `yaml_text` reads and writes YAML with limits,
`file_kinds` tells our files apart, `finite_json` writes JSON that every reader can read. In come texts; out come
values. Nothing here knows which keys a job or a fleet has.
"""
