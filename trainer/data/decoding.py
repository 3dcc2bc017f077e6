"""Decodes token ids to text: the program `python -m trainer.data.decoding`, which periplus/job/samples/texts.py runs.

Its argument is the path of a tokenizer.json. It reads a JSON list of [prompt ids, completion ids, cuts] from standard
input, and writes a list of [prompt, pieces] to standard output. Cuts are the ends of the pieces in tokens. An id that
the tokenizer does not have is left out of the text by the library.

Torch and transformers are not imported, so the program starts in tens of milliseconds. It ends with the error of the
tokenizers library if the file cannot be read.
"""

import json
import resource
import sys
from collections.abc import Sequence
from itertools import pairwise

from tokenizers import Tokenizer

LIMIT_S = 20
"""Processor seconds after which the kernel ends this process, whatever the tokenizer's file holds. Chosen by hand: a
page of samples takes a small part of one."""


def decoded_sample(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], completion_ids: Sequence[int], cuts: Sequence[int]
) -> tuple[str, list[str]]:
    """Return the text of a prompt, and the text of a completion in pieces. Special tokens are shown.

    The pieces joined are the text of the whole completion.
    """
    prompt: str = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    whole: str = tokenizer.decode(completion_ids, skip_special_tokens=False)
    places = [0]
    for cut in cuts[:-1]:
        # How far the text of the first tokens is the beginning of the whole: a token may end within a character, or
        # change what stands before it.
        first = tokenizer.decode(completion_ids[:cut], skip_special_tokens=False)
        places.append(max(places[-1], _common_length(first, whole)))
    return prompt, [whole[begin:end] for begin, end in pairwise([*places, len(whole)])]


def _common_length(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next(i for i, character in enumerate(left) if i >= len(right) or right[i] != character)


def main() -> None:
    """Read from standard input and write to standard output, within LIMIT_S seconds of processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
    # Loaded before the samples are read: whoever asks is still looking for them.
    tokenizer = Tokenizer.from_file(sys.argv[1])
    sys.stdout.write(json.dumps([decoded_sample(tokenizer, *sample) for sample in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
