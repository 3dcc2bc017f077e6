"""The adapter for environments of `verifiers`, with a stand-in for the library, which is not installed here."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "verifiers_env.py"


class Guess:
    """As a `MultiTurnEnv` of the library: two turns at most, and the rubric asks whether the last one is right."""

    rubric: Any

    def __init__(self) -> None:
        self.rubric = self

    def get_dataset(self) -> list[dict[str, Any]]:
        return [{"prompt": "guess", "answer": str(number)} for number in range(3)]

    async def init_state(self, row: dict[str, Any], _client: object, _model: str) -> dict[str, Any]:
        prompt = [{"role": "text", "content": row["prompt"]}]
        return {**row, "prompt": prompt, "trajectory": [], "trajectory_id": "a"}

    async def setup_state(self, state: dict[str, Any]) -> None: ...

    async def get_prompt_messages(self, state: dict[str, Any]) -> list[dict[str, str]]:
        if not state["trajectory"]:
            return list(state["prompt"])
        last = state["trajectory"][-1]
        return [*last["prompt"], *last["completion"], {"role": "user", "content": "again"}]

    async def add_trajectory_step(self, state: dict[str, Any], step: dict[str, Any]) -> None:
        state["trajectory"].append(step)

    async def is_completed(self, state: dict[str, Any]) -> bool:
        return len(state["trajectory"]) == 2

    async def cleanup(self, state: dict[str, Any]) -> None: ...

    async def score_rollout(self, state: dict[str, Any]) -> None:
        state["reward"] = float(state["trajectory"][-1]["completion"][0]["content"] == state["answer"])


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    library: Any = ModuleType("verifiers")
    library.load_environment = lambda env_id: Guess()
    library.ClientConfig = SimpleNamespace
    library.UserMessage = lambda content: {"role": "user", "content": content}
    library.AssistantMessage = lambda content: {"role": "assistant", "content": content}
    monkeypatch.setitem(sys.modules, "verifiers", library)
    spec = importlib.util.spec_from_file_location("verifiers_env", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_episode_has_the_turns_and_the_reward_of_the_environment(adapter: ModuleType) -> None:
    async def play() -> None:
        episode = adapter.Episode(id="guess")
        assert await episode.reset({"columns": {"row": 2}}) == [{"role": "user", "content": "guess"}]
        assert await episode.step("1") == ([{"role": "user", "content": "again"}], 0.0, False)
        assert await episode.step("2") == (None, 1.0, True)

    asyncio.run(play())


def test_the_problems_are_exported_with_the_rows_that_episodes_begin_with(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["verifiers_env.py", "guess"])
    adapter.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == {"prompt": [{"role": "user", "content": "guess"}], "answer": "2", "row": 2}
    assert len(rows) == 3


def test_content_that_is_no_text_is_refused(adapter: ModuleType) -> None:
    with pytest.raises(TypeError, match="no text"):
        adapter.said([{"role": "user", "content": [{"type": "image_url"}]}])
