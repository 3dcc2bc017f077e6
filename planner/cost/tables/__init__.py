"""Costs of the parts of any placement of one problem, computed once and shared by all methods.

`cost_tables` holds the costs of pools and meshes, `network` and `transfers` those of links, `validity` says what a
placement must fulfil. In comes a problem; out come tables that are looked up by device class, layout and region.
Nothing here knows a whole placement's time.
"""
