"""The live view of a job in a terminal, as plain lines for a pipe, and as SVG pictures.

In comes a `ViewState`; out come renderables and text, the same for the same state. Nothing here reads a network or
decides what is known about a job.
"""
