"""Delta codec for model weights: the difference of two published versions in fewer bits than independent changes need.

`encoder` turns two states into the parts of a payload; `decoder` turns a base and these parts into the new state. Both
depend on `part` (one span of 8 MiB), `head` (part 0) and `layout` (how a state is cut into spans). `span` and the
modules that it calls code a sparse span: `contexts` (probability models), `choice` and `level_map` (odds of a change),
`gaps` or `flags` (positions of changes), `steps` or `adaptive` (sizes of changes), `tables`, `coder` (ANS entropy
coder) and `kernels` (compiled loops). `floors` computes entropy bounds for comparison. docs/design/0007-weights.md is
the design.

Import from the modules: `encoder` and `decoder` load numba and constriction, `layout` does not.
"""
