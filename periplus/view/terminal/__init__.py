"""Terminal output: the live view of a job, plain lines for a pipe, SVG pictures, and listings of values.

A `ViewState` or a tree of values comes in, and renderables or text go out, the same for the same input. Nothing here
opens a connection or decides what is known about a job.
"""
