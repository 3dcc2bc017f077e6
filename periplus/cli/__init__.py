"""What the packages' command groups share: how commands are mounted and which types their options have.

In come click commands and words of a command line; out come values that cannot fail later, or an error with the
documented exit code. Nothing here knows a job, a fleet or a service.
"""
