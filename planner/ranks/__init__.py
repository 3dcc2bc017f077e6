"""Which machine and which devices each unit of a placement gets, and in which order the ranks of a mesh are numbered.

The oracle counts devices by class, which is exact while links inside a class are equal. Where they differ, order
matters: `links` says what machines reach each other at, `packing` gives units machines, `mesh` orders a mesh's units so
that its slowest pipeline hop and its slowest ring link are as fast as possible, from METIS and other seeds (`metis`,
`seeds`) by swaps and bottleneck matchings (`matching`). `assign` does all of it.
"""
