import pytest

from tests.support.coordinator.preflight import check_in_this_process


@pytest.fixture(autouse=True)
def _jobs_are_checked_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_this_process(monkeypatch)
