"""The wide-area network in the simulator: links that are shared fairly, and publications that cross them.

`links` moves bytes along routes, `publisher` sends each version to every region that needs it. In come transfers; out
come arrivals. Nothing here uses the cost model.
"""
