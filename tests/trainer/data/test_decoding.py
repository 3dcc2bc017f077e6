"""Token ids to text: pieces joined are the whole text, wherever a completion is cut."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer.data.characters import character_tokenizer
from trainer.data.decoding import decoded_sample


def byte_level() -> Tokenizer:
    """A tokenizer of single bytes, in which a character may take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTES = byte_level()


@given(st.text(max_size=12), st.data())
def test_pieces_joined_are_the_whole_text(text: str, data: st.DataObject) -> None:
    ids = BYTES.encode(text).ids
    inner = sorted(data.draw(st.sets(st.integers(1, max(1, len(ids))), max_size=4)))
    cuts = [*(cut for cut in inner if cut < len(ids)), len(ids)]
    prompt, pieces = decoded_sample(BYTES, ids, ids, cuts)
    assert prompt == "".join(pieces) == BYTES.decode(ids)
    assert len(pieces) == len(cuts)


def test_a_cut_within_a_character_gives_it_to_the_second_piece() -> None:
    ids = BYTES.encode("aé!").ids
    assert len(ids) == 4
    assert decoded_sample(BYTES, [], ids, [2, 4]) == ("", ["a", "é!"])


def test_special_tokens_are_shown() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer.encode("1+1").ids
    assert decoded_sample(tokenizer, ids, [*ids[1:2], 2], [2]) == ("<bos>1+1<answer>", ["1<eos>"])


@pytest.mark.processes
def test_the_program_answers_with_the_texts_of_all_samples(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    BYTES.save(str(file))
    a, b = BYTES.encode("a").ids, BYTES.encode("bc").ids
    command = [sys.executable, "-P", "-m", "trainer.data.decoding", str(file)]
    done = subprocess.run(command, input=json.dumps([[a, b, [1, 2]], [b, a, [1]]]), capture_output=True, text=True)
    assert json.loads(done.stdout) == [["a", ["b", "c"]], ["bc", ["a"]]], done.stderr
