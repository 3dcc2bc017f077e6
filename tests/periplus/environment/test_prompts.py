"""How prompts are framed: the model's template, the job's, or none."""

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from periplus.environment.completions import end_token_ids
from periplus.environment.environment import Item, Message
from periplus.environment.prompts import PromptEncoder
from periplus.errors import ConfigError
from periplus.job.job_file import job_of
from periplus.job.model_section import NO_TEMPLATE
from trainer.data.model import build_tokenizer
from trainer.preflight import framing_remarks

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}{{ mark or 'a' }}:{% endif %}"
)
ITEM = Item(index=3, prompt="1+1?", answer="2")


def test_without_a_template_the_text_is_encoded_as_it_is() -> None:
    encoder = PromptEncoder(tokenizer=build_tokenizer())
    assert (encoder.is_plain, encoder.text(ITEM), encoder.description) == (
        True,
        "1+1?",
        "plain text, without a chat template",
    )
    assert len(encoder.encode(ITEM)) == len(encoder.tokenizer("1+1?")["input_ids"])


def test_a_template_frames_messages_and_takes_arguments() -> None:
    encoder = PromptEncoder(tokenizer=build_tokenizer(), template=TEMPLATE, arguments={"mark": "z"})
    assert encoder.text(ITEM) == "u:1+1?;z:"
    system = Item(
        index=0, prompt="", answer="", messages=(Message(role="system", content="s"), Message(role="user", content="q"))
    )
    assert encoder.text(system) == "s:s;u:q;z:"
    ids = encoder.encode(ITEM)
    assert encoder.tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "").endswith("z:")
    assert "the job's chat template (sha256 " in encoder.description


def test_a_template_sees_calls_of_tools() -> None:
    template = "{% for m in messages %}{{ m.role }}{{ m.tool_calls }}{{ m.tool_call_id }};{% endfor %}"
    messages = (
        Message(role="assistant", content="", extra={"tool_calls": [1]}),
        Message(role="tool", content="2", extra={"tool_call_id": "c"}),
    )
    encoder = PromptEncoder(tokenizer=build_tokenizer(), template=template)
    assert encoder.text(Item(index=0, prompt="", answer="", messages=messages)) == "assistant[1];toolc;"


def test_the_models_own_template_is_used_unless_the_job_says_none() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    assert PromptEncoder(tokenizer=tokenizer).text(ITEM) == "u:1+1?;a:"
    assert "the model's chat template" in PromptEncoder(tokenizer=tokenizer).description
    assert PromptEncoder(tokenizer=tokenizer, template=NO_TEMPLATE).text(ITEM) == "1+1?"


def test_a_template_that_refuses_the_messages_is_the_operators_error() -> None:
    refusing = PromptEncoder(tokenizer=build_tokenizer(), template="{{ raise_exception('no system') }}")
    with pytest.raises(ConfigError, match=r"refuses problem 3: .*no system; set model.chat_template"):
        refusing.encode(ITEM)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "<think>"]


def words(*, single: str = "$A") -> PreTrainedTokenizerFast:
    """A tokenizer of letters with special tokens, which puts those of `single` around a text."""
    letters = [*SPECIALS, *sorted(set("usera sistant\n1+=?0123456789ANSWER"))]
    inner = Tokenizer(models.WordLevel({text: number for number, text in enumerate(letters)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    inner.decoder = decoders.Fuse()
    pieces = [(text, letters.index(text)) for text in SPECIALS if text in single]
    inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=pieces)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        bos_token="<s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>", "<think>"],
    )


@pytest.mark.parametrize("prompt", ["1+1=", "<s>1+1=", "<s><|im_start|>user\n1+1=<|im_end|>\n"])
def test_bos_stands_once_before_a_prompt_that_has_it_already(prompt: str) -> None:
    tokenizer = words(single="<s> $A")
    ids = PromptEncoder(tokenizer=tokenizer).encode(Item(index=0, prompt=prompt, answer="2"))
    assert tokenizer.decode(ids) == (prompt if prompt.startswith("<s>") else f"<s>{prompt}")


def test_an_end_token_that_the_tokenizer_appends_to_prompts_is_left_out() -> None:
    tokenizer = words(single="<s> $A <|endoftext|>")
    encoder = PromptEncoder(tokenizer=tokenizer)
    assert tokenizer.decode(encoder.encode(ITEM)) == "<s>1+1?"
    # One that the prompt itself has stays.
    own = Item(index=0, prompt="1<|endoftext|>", answer="")
    assert tokenizer.decode(encoder.encode(own)) == "<s>1<|endoftext|>"


def test_all_end_tokens_of_a_checkpoint_count(tmp_path: Path) -> None:
    tokenizer = words()
    assert end_token_ids(tmp_path, tokenizer) == (0,)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1, "text_config": {"eos_token_id": [3]}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2, 10_000, None]}))
    assert end_token_ids(tmp_path, tokenizer) == (0, 1, 2, 3)
    # The model may have more tokens than the tokenizer.
    beyond = len(tokenizer) + 1
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": beyond, "vocab_size": beyond + 1}))
    assert end_token_ids(tmp_path, tokenizer) == (0, 2, beyond)


def test_the_text_of_a_completion_has_special_tokens_without_ends_and_padding() -> None:
    tokenizer = words()
    decoder = PromptEncoder(tokenizer=tokenizer, end_ids=(0, 2)).decoder
    ids = tokenizer("<think>1+1<|im_start|>2<|im_end|>")["input_ids"]
    assert decoder.text([*ids, 0, 0]) == "<think>1+1<|im_start|>2"


@pytest.mark.parametrize(
    ("end_ids", "stop", "warns"), [((0,), (), True), ((0, 2), (), False), ((0,), ("<|im_end|>",), False)]
)
def test_a_template_that_ends_turns_with_no_end_token_is_said(
    end_ids: tuple[int, ...], stop: tuple[str, ...], warns: bool
) -> None:
    encoder = PromptEncoder(tokenizer=words(), template=CHATML, end_ids=end_ids)
    assert encoder.turn_end == (2, "<|im_end|>")
    assert encoder.end_of_answers == (2 if 2 in end_ids else 0)
    job = job_of({"name": "a", "environment": {"name": "chain_sum"}, "sampling": {"stop": list(stop)}})
    remarks = framing_remarks(job, encoder)
    assert len(remarks) == warns
    if warns:
        assert 'set sampling.stop=["<|im_end|>"]' in remarks[0]


def test_a_turn_that_ended_with_another_end_token_is_continued_as_the_template_renders_it() -> None:
    tokenizer = words()
    said = [(Message(role="user", content="3"),)]
    for end_ids, last in (((0, 2), 0), ((0,), 2)):
        encoder = PromptEncoder(tokenizer=tokenizer, template=CHATML, end_ids=end_ids)
        added = tokenizer.decode(encoder.continuation(ITEM, said, last))
        assert added == "\n<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n"
