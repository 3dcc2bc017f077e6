"""The `secrets` of a job file."""

import pytest

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, job_of

TREE = {"name": "sums", "environment": {"name": "chain_sum"}}


def test_a_job_names_secrets_by_variable() -> None:
    job = job_of({**TREE, "secrets": {"HF_TOKEN": "hub-token"}})
    assert job.secrets == {"HF_TOKEN": "hub-token"}
    assert JobFile.from_json(job.to_json()).secrets == job.secrets
    assert job_of(TREE).secrets == {}


@pytest.mark.parametrize("variable", ["PATH", "LD_PRELOAD", "PYTHONPATH", "PERIPLUS_IDENTITY", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_decides_how_processes_run_is_refused(variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"secrets\.{variable} would replace"):
        job_of({**TREE, "secrets": {variable: "x"}})


@pytest.mark.parametrize("secrets", [{"lower": "x"}, {"A=B": "x"}, {"HF_TOKEN": "two words"}, {"HF_TOKEN": ""}])
def test_names_are_plain(secrets: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="secrets"):
        job_of({**TREE, "secrets": secrets})
