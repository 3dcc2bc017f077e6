"""The report of a run as one HTML page: charts, style, the page, and the writer that reads a run's directory.

The files of a run directory come in, and `report.html` goes out, which needs no script and no other file. The page is
drawn once, from what is on disk; nothing here follows a running job or asks a coordinator.
"""
