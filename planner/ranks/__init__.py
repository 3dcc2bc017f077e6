"""Rank assignment: which machine and devices each unit of a placement gets, and the order of a mesh's ranks.

The oracle counts devices by class, which is exact while links inside a class are equal. Where measured links differ,
order matters. `links` has the rates between machines, and `packing` gives units machines. `mesh` orders a mesh's units
so that its slowest pipeline hop and slowest ring link are as fast as possible. It starts from METIS and other seeds
(`metis`, `seeds`) and improves by swaps and bottleneck matchings (`matching`). `assign` does all of it.

A placement and its predicted time are never changed.
"""
