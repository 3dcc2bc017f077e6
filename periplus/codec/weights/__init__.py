"""Delta codec for model weights: the lossless difference of two published versions, entropy-coded.

`encoder` turns two states into the parts of a payload; `decoder` turns a base and these parts into the new state, whose
unwritten content is `staged`. Both depend on `part` (one span of 8 MiB), `head` (part 0) and `layout` (how a state is
cut into spans). `sparse/` codes a span in which few elements changed, with the probability models, the ANS coder and
the compiled loops of `entropy/`. `floors` computes entropy bounds for comparison. docs/design/0007-weights.md is the
design.

Import from the modules: `encoder` and `decoder` load numba and constriction, `layout` does not.
"""
