"""A real, tiny reward model in a process of its own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from periplus.errors import ConfigError
from periplus.job.job_file import load_job
from periplus.job.reward_models import checkpoint_digest
from rollout_worker.rewards.functions import model
from tests.support.cases.tiers import rest_is_slow
from tests.support.processes.rewards import Answered, play, reward, scores, scoring, text
from trainer.data.characters import character_tokenizer

COMPLETIONS = ["1", "12 + 3", "a longer answer with words", "", "7", "abc"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward-model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_labels=2,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(), eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def entry(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"name": "model", "path": str(folder), "digest": checkpoint_digest(folder), **changes}


@pytest.mark.processes
@pytest.mark.parametrize("output", rest_is_slow([1, 0]))
def test_completions_get_the_models_own_output_however_they_are_batched(checkpoint: Path, output: int) -> None:
    async def scene() -> list[float]:
        async with scoring(reward(entry(checkpoint, output=output), timeout_s=60), "") as scorer:
            found = await scores(scorer, Answered("").item(0), COMPLETIONS)
            return [each.reward for each in found]

    loaded = Qwen3ForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    expected = []
    for completion in COMPLETIONS:
        ids = tokenizer("problem 0" + completion, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            # One text without padding: its last token is the last of the row.
            hidden = loaded.model(ids).last_hidden_state
            expected.append(loaded.score(hidden)[0, -1].tolist())
    assert play(scene) == pytest.approx([each[output] for each in expected], abs=1e-5)


def test_another_checkpoint_than_the_jobs_is_refused(checkpoint: Path) -> None:
    (found,) = reward(entry(checkpoint, digest="0" * 64)).entries
    with pytest.raises(ValueError, match=f"has the digest .*, but the job was submitted with {'0' * 64}"):
        model.build(found.model_dump(mode="json"))


def test_a_language_model_is_no_reward_model(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "language-model"
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lack score.weight of Qwen3ForSequenceClassification; give a sequence class"):
        model.build(reward(entry(folder)).entries[0].model_dump(mode="json"))


def test_a_job_fixes_the_digest_of_its_reward_model(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    section = {"functions": [{"name": "model", "path": str(checkpoint)}]}
    file.write_text(f"name: a\nenvironment: {{name: chain_sum}}\nreward: {json.dumps(section)}\n")
    (found,) = load_job(file).reward.functions
    assert found.model_dump()["digest"] == checkpoint_digest(checkpoint)
    with pytest.raises(ConfigError, match=r"reward\.functions\.0\.path .* holds no config\.json"):
        load_job(file, [f"reward.functions=[{{name: model, path: {tmp_path}}}]"])


def test_a_digest_changes_with_each_file_that_decides_what_is_computed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = checkpoint_digest(tmp_path)
    (tmp_path / "README.md").write_text("x")
    assert checkpoint_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with_weights = checkpoint_digest(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert len({before, with_weights, checkpoint_digest(tmp_path)}) == 3


class Chat:
    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages: list[dict[str, str]], *, tokenize: bool) -> str:
        return "|".join(f"{message['role']}:{message['content']}" for message in messages)


class Plain:
    chat_template = None


def test_the_model_reads_the_conversation_in_its_own_template() -> None:
    asked = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert model.text_of(text("c"), Plain(), None) == "pc"
    assert model.text_of(text("c"), Chat(), None) == "user:p|assistant:c"
    assert model.text_of(text("c", messages=asked), Chat(), None) == "system:s|user:u|assistant:c"
    assert model.text_of(text("a {prompt}"), Chat(), "Q: {prompt} A: {completion}") == "Q: p A: a p"


def test_special_tokens_of_a_chat_template_are_not_put_there_again(checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "framed"
    shutil.copytree(checkpoint, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}<bos>{{ m.content }}{% endfor %}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.convert_tokens_to_ids("<bos>"))]
    )
    tokenizer.save_pretrained(folder)
    built = model.build(reward(entry(folder)).entries[0].model_dump(mode="json"))
    read = [text("1")]
    loaded = Qwen3ForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer("<bos>p<bos>1", add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected = loaded.score(loaded.model(ids).last_hidden_state)[0, -1].tolist()
    assert built.score(read) == pytest.approx([expected[0]], abs=1e-5)
