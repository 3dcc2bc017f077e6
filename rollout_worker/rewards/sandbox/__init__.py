"""The sandbox: where programs run that a model wrote.

    kernel      calls of the kernel that Python has no functions for
    view        the file system that a program sees
    run         one run of one program: started, limited, ended with all that it has started

In come a program, its input and limits; out go what it printed and how it ended. Nothing here knows of rewards.
docs/rewards.md says what this protects from, and what not.
"""
