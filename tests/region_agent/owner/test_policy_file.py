"""The policy file: what is read, and what is refused."""

import os
import threading
from pathlib import Path

import pytest

from periplus.errors import ConfigError, Denied
from region_agent.owner.policy_file import AgentPolicy, SecretSource, read_policy

HEAD = "schema: periplus.agent-policy/1\n"


def policy_of(folder: Path, text: str, head: str = HEAD) -> AgentPolicy:
    path = folder / "policy.yaml"
    path.write_text(head + text)
    return read_policy(path)


def test_a_file_with_every_key_is_read_and_one_without_keys_forbids_nothing(tmp_path: Path) -> None:
    assert policy_of(tmp_path, "") == AgentPolicy()
    text = (
        "operators: [ann]\ndevices: [0, 2]\nengines: [vllm]\nown_code: false\nunsandboxed: false\n"
        "egress_gb_per_day: 2.5\nsecrets:\n  hub: {env: HUB_TOKEN}\n  wandb: {file: /etc/wandb}\n"
    )
    assert policy_of(tmp_path, text) == AgentPolicy(
        operators=("ann",),
        devices=(0, 2),
        engines=("vllm",),
        own_code=False,
        unsandboxed=False,
        egress_gb_per_day=2.5,
        secrets={"hub": SecretSource(env="HUB_TOKEN"), "wandb": SecretSource(file=Path("/etc/wandb"))},
    )


def test_the_example_of_the_page_is_a_policy(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "owners.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert policy_of(tmp_path, example, head="").model_fields_set == set(AgentPolicy.model_fields)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kings: [ann]\n", r"unknown key kings; known keys: operators, devices, engines, own_code, "),
        ("operator: [ann]\n", r"unknown key operator; did you mean operators\?"),
        ("devices: [-1]\n", r"devices\.0 is -1"),
        ("engines: [sglang]\n", r"engines\.0 is .*torch, vllm"),
        ("operators: ['a b']\n", r"operators\.0 is"),
        ("egress_gb_per_day: .inf\n", r"egress_gb_per_day"),
        ("secrets: {hub: {}}\n", r"secrets\.hub must have exactly one of the keys env and file"),
        ("secrets: {hub: {env: A, file: /b}}\n", r"secrets\.hub must have exactly one"),
        ("secrets: {hub: {value: A}}\n", r"unknown key secrets\.hub\.value; known keys: env, file"),
    ],
)
def test_what_is_wrong_is_refused_with_the_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        policy_of(tmp_path, text)


def test_a_file_of_another_schema_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schema: periplus\.agent-policy/1"):
        policy_of(tmp_path, "", head="schema: periplus.devices/1\n")
    with pytest.raises(ConfigError, match="nowhere"):
        read_policy(tmp_path / "nowhere.yaml")


def test_a_secret_is_read_without_its_line_end_and_a_refusal_shows_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"hidden 1\r\n")
    assert SecretSource(file=path).value() == "hidden 1"
    assert SecretSource(env="HUB").value({"HUB": "hidden 2"}) == "hidden 2"
    for content in (b"", b"\n", b"hidden\xff", b"hidden\0", b"hidden" * 10_000):
        path.write_bytes(content)
        with pytest.raises(Denied, match="secret") as refused:
            SecretSource(file=path).value()
        assert "hidden" not in str(refused.value)
        assert refused.value.__cause__ is None
    with pytest.raises(Denied, match="HUB is empty or missing"):
        SecretSource(env="HUB").value({})
    with pytest.raises(Denied, match="No such file"):
        SecretSource(file=tmp_path / "none").value()


def test_a_pipe_in_place_of_a_secrets_file_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = threading.Event()

    def read() -> None:
        for _ in range(2):  # without a writer, and with one that writes nothing
            with pytest.raises(Denied, match="is empty or missing"):
                SecretSource(file=pipe).value()
            writers.append(os.open(pipe, os.O_RDWR))
        refused.set()

    writers: list[int] = []
    threading.Thread(target=read, daemon=True).start()
    assert refused.wait(5.0)
    for each in writers:
        os.close(each)


def test_a_pipe_in_place_of_a_policy_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy")
    with pytest.raises(ConfigError, match="is a pipe"):
        read_policy(tmp_path / "policy")
