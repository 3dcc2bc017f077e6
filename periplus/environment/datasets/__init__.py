"""Data sets as problems: from a job's `data` section to a list of problems, and to the file that workers get.

`locate` finds the files of a data set, `rows` reads their rows, `problems` makes problems of rows, and `problem_file`
writes and reads the problems in one form, whatever the data set was. Nothing here knows tokens or policies.
"""
