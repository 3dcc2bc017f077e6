"""What the command groups of several packages share: a group with a default command, and types of options.

Words of a command line come in; checked values, or a usage error, come out. `mounting` has the command group and
`option_types` the types. Nothing here knows a job, a fleet or a service.
"""
