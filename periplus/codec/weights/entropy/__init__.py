"""Entropy coding of weight deltas: probability models, the coder, and the compiled loops.

`contexts` and `tables` hold the models, `coder` the stack of symbols, `adaptive` models without transmitted tables,
`level_map` which odds each cell has, `kernels` the numba loops. In come integers; out come bits, the same on every
machine. Nothing here knows of files, versions or signatures.
"""
