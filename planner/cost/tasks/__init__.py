"""Seconds and bytes of each task on given devices: generation, scoring and training.

Each module models one task or one effect, from the physics of `planner.devices`, with its formula and source in its
docstring. In come a layout, a device class and lengths; out come seconds, tokens or bytes. Nothing here knows of
regions, prices or other tasks.
"""
