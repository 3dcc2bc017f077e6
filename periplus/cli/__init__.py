"""What the command groups of several packages share: groups of commands, and types of options.

Words of a command line come in; checked values, or a usage error, come out. `mounting` has the command groups and
`option_types` the types. Nothing here knows a job, a fleet or a service.
"""
