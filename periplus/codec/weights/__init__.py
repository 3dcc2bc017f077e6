"""Weights between two published versions, in fewer bits than the entropy of independent changes.

Import from the modules: `encoder` and `decoder` load numba and constriction, `layout` does not.
"""
