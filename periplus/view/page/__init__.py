"""The report of a run as one HTML page: charts, style, and the writer that reads a run's directory.

In come records of a run; out comes one page that needs no script and no other file. Nothing here follows a running job.
"""
