"""The job and the reward of docs/bring-your-own.md are what the page says."""

import json
import re
from pathlib import Path

from periplus.job.job_file import load_job

PAGE = Path(__file__).parents[3] / "docs" / "bring-your-own.md"


def block(language: str) -> str:
    """Return the first block of the page in a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_job_of_the_page_is_valid_and_carries_the_reward_beside_it(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(block("python"))
    (tmp_path / "gsm8k.yaml").write_text(block("yaml"))
    problem = {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"}
    (tmp_path / "train.jsonl").write_text(json.dumps(problem) + "\n")
    local = [f"data.path={tmp_path / 'train.jsonl'}", "data.subset=null", "model.path=builtin:qwen3-tiny"]
    job = load_job(tmp_path / "gsm8k.yaml", local)
    assert list(job.reward.code_digests) == ["my_rewards.py"]
    assert job.data.answer_pattern == "#### (.+)"
    assert len([line for line in block("yaml").splitlines() if line and not line.startswith("#")]) <= 25


def test_the_reward_of_the_page_tells_right_from_wrong() -> None:
    names: dict[str, object] = {}
    exec(block("python"), names)
    score = names["score"]
    assert callable(score)
    texts = [r"so \boxed{3}, no \boxed{42}", r"\boxed{41}", "42", [{"role": "assistant", "content": r"\boxed{42}"}]]
    assert score(completions=texts, answer=["42"] * 4, question=[""] * 4) == [1.0, 0.1, 0.0, 1.0]
