"""The reward functions, one kind a file: each turns a problem and a completion into a number.

A module has `build(settings)`, which returns the function for the settings of an entry of `reward.functions`. They run
in reward processes alone, so that they may hang, crash and use signals. Nothing here knows of pools or workers, and a
library is imported only by the function that needs it.
"""
