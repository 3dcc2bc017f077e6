"""Entropy coding of weight deltas: probability models, the coder, and the compiled loops.

`contexts` and `tables` hold the models, `coder` the stack of symbols, `adaptive` models without transmitted tables,
`level_map` the odds of each cell, `kernels` the numba loops. Integers come in, and bits go out, the same on every
machine. Nothing here knows of files, versions or signatures.
"""
