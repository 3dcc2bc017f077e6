"""Rewards: from a problem and a completion to a number, in processes of their own.

    scorer       runs the job's functions on a sample, and adds up what they say
    building     from the job's `reward` section to a scorer
    pool         the processes: who scores what, what is too slow, what is started again
    child        one process as its worker sees it; wire: the messages between the two
    pipes        what such a process and its worker, and one of an environment, have in common
    keeper       ends whatever the functions of a process have started, once the process itself has ended
    process      the program of such a process; functions: what it computes, one kind a file
    sandbox      where programs run that a model wrote
    check        the first problem of a job, scored where the job is submitted

In come problems and completions as text; out go numbers by label, and failures as types. Nothing here knows of leases,
engines or policies. The modules that a reward process imports know no torch, apart from those of reward models.
"""
