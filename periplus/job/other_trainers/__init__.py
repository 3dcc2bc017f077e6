"""Names of settings in other trainers, and what a user of a Periplus job is told about each.

They are for messages only: a job never accepts them in place of its own keys.
"""
