"""What the command groups of several packages share: groups of commands, types of options, progress.

Words of a command line come in; checked values, or a usage error, come out. `command_groups` has the command groups,
`option_types` the types, and `progress_line` shows how far long work is. Nothing here knows a job, a fleet or a
service.
"""
