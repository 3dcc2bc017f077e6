"""Comparisons with other people's code, which is run. `make test-oracle` makes an environment that has it (extra
`oracle`); elsewhere these tests do not exist, so that the rest of the suite needs none of it."""

from importlib.util import find_spec

if find_spec("trl") is None or find_spec("torchrl") is None:
    collect_ignore_glob = ["test_*.py"]
