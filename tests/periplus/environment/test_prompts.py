"""How prompts are framed: the model's template, the job's, or none."""

import pytest

from periplus.environment.environment import Item, Message
from periplus.environment.prompts import PromptEncoder
from periplus.errors import ConfigError
from periplus.job.model_section import NO_TEMPLATE
from trainer.data.model import build_tokenizer

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
