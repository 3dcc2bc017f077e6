"""HetRL's five levels: nested successive halving over groupings and sizes, evolution below. Re-implemented.

`groupings` (levels 1 and 2), `genome` (3 and 5), `menu` (4), `evolution`, `halving`, and the improved variant's
`bounds` and `guide`; `judge` asks the oracle and keeps what is best. `docs/planner-reimplementations.md` says what of
it is published.
"""
