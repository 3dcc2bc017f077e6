"""Stop strings in real tokenizers' texts: a `StopWatch`, which decodes the last tokens alone, against whole texts."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from periplus.environment.completions import CompletionDecoder
from rollout_worker.engines.stop_strings import StopStrings

CORPUS = ["the answer is 42. Ünïcödé 日本語 text, and END of it\n\nQuestion: what? </answer> " * 4]
SPECIAL = ["<pad>", "<eos>"]


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Tokens are bytes and their merges, so that one character may take several tokens (Qwen, Llama 3)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


@cache
def metaspace() -> PreTrainedTokenizerFast:
    """A text loses the space before its first token (Llama 2, Mistral)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


@cache
def characters() -> PreTrainedTokenizerFast:
    """A token for each character, as in the built-in models."""
    letters = {letter: number for number, letter in enumerate([*SPECIAL, *sorted(set(CORPUS[0]))])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


TOKENIZERS = {"byte_level": byte_level, "metaspace": metaspace, "characters": characters}
TEXTS = [
    "END",
    "\n\n",
    "</answer>",
    "日本",
    "语",
    "é",
    " of",
    "a",
    "e a",
    "Question: what?",
    "the answer is 42. Ünïcödé",
]


def length_at_stop(tokenizer: Any, token_ids: Sequence[int], texts: Sequence[str], least: int = 0) -> int | None:
    """The number of tokens after which the whole text first contains a stop string, by decoding all of it each time."""
    hidden = set(tokenizer.all_special_ids)
    for length in range(least + 1, len(token_ids) + 1):
        shown = [token for token in token_ids[least:length] if token not in hidden]
        text = tokenizer.decode(shown, skip_special_tokens=False)
        if any(each in text for each in texts):
            return length
    return None


def watched(strings: StopStrings, token_ids: Sequence[int]) -> int | None:
    watch = strings.watch()
    return next((number for number, token in enumerate(token_ids, start=1) if watch.completes(token)), None)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_watch_stops_at_the_token_that_the_whole_text_tells(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    texts = data.draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=2, unique=True))
    # Tokens at random, then a text that has a stop string: most watches shorten their window before they find it.
    token_ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=250))
    token_ids += tokenizer(data.draw(st.sampled_from(["", *CORPUS, *TEXTS])))["input_ids"]
    least = data.draw(st.sampled_from([0, 0, 3, 40]))
    found = watched(StopStrings(CompletionDecoder(tokenizer=tokenizer), texts, least), token_ids)
    assert found == length_at_stop(tokenizer, token_ids, texts, least)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stop_string_far_behind_is_found_and_a_token_costs_the_same_however_long_the_text(name: str) -> None:
    tokenizer, most = TOKENIZERS[name](), 0

    class Counting:
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            nonlocal most
            most = max(most, len(ids))
            return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    filler = tokenizer("the answer is 42. " * 200)["input_ids"]
    token_ids = [*filler, *tokenizer("it is text, and END of it")["input_ids"]]
    expected = length_at_stop(tokenizer, token_ids, ["END"])
    assert expected is not None
    assert expected > len(filler)
    assert watched(StopStrings(CompletionDecoder(tokenizer=Counting()), ["END"]), token_ids) == expected
    assert most < 100 < len(filler)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_scored_text_ends_before_the_stop_string(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer("the answer is 42. END of it")["input_ids"]
    strings = StopStrings(CompletionDecoder(tokenizer=tokenizer), ["END", "of"])
    at_stop = token_ids[: watched(strings, token_ids)]
    assert strings.before(at_stop) == "the answer is 42. "
    assert strings.before([]) == ""
    whole = tokenizer("what? the answer")["input_ids"]
    assert strings.before(whole) == tokenizer.decode(whole)


def test_a_stop_string_among_the_first_tokens_does_not_count() -> None:
    tokenizer = characters()
    token_ids = tokenizer("END of END of")["input_ids"]
    strings = StopStrings(CompletionDecoder(tokenizer=tokenizer), ["END"], min_new_tokens=3)
    assert watched(strings, token_ids) == len("END of END")
    assert strings.before(token_ids[: len("END of END")]) == "END of "


@pytest.mark.parametrize("texts", [(), ("",), ("a", "")])
def test_no_text_and_an_empty_text_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="give at least one, and none that is empty"):
        StopStrings(CompletionDecoder(tokenizer=characters()), texts)


def test_a_stop_string_that_is_a_special_token_is_found_by_its_id() -> None:
    tokenizer = byte_level()
    pad = tokenizer.pad_token_id
    strings = StopStrings(CompletionDecoder(tokenizer=tokenizer), ["<pad>"])
    assert strings.special_ids == {pad}
    said = tokenizer("the answer")["input_ids"]
    assert watched(strings, [*said, pad, *said]) == len(said) + 1
    assert strings.before([*said, pad]) == "the answer"
