"""Kernels are compiled once a machine, so numba needs a folder that it may write."""

import pytest

from periplus.codec.weights.entropy import kernels
from periplus.errors import Denied


def test_a_machine_without_a_folder_for_compiled_code_is_told_which_variable_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> object:
        raise RuntimeError("cannot cache function 'f': no locator available")

    monkeypatch.setattr("numba.njit", refuse)
    with pytest.raises(Denied, match="NUMBA_CACHE_DIR"):
        kernels.kernel(len)
