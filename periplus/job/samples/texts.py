"""Token ids to text, with the tokenizer that a run has kept, in a child process.

The kernel imports no tokenizer, and a damaged tokenizer file may end the process that reads it. So the program
`python -m trainer.data.decoding TOKENIZER` does it: it reads one JSON list from standard input and writes one to
standard output. On a machine without the tokenizers library, or with a run that has no tokenizer, there is no text, and
a sentence that says why; token ids are shown then.

A completion is cut into pieces where the policy changes, or where sampled tokens and context meet. Its text is decoded
as a whole and cut at the same places, since tokens alone may decode otherwise than tokens in a text.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from periplus.job.run_directory import RunDirectory

TOKENIZER_FILE = "tokenizer.json"
"""Name of the file that holds a whole tokenizer, as the tokenizers library writes it."""

PROGRAM = "trainer.data.decoding"
"""Module that is run as the child. It belongs to the trainer, whose libraries it needs."""

DEADLINE_S = 30.0
"""Seconds after which the child is killed. Chosen by hand: loading a tokenizer of 150,000 tokens takes about one."""

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensToDecode:
    """Token ids of a prompt and a completion. `cuts` are the ends of the completion's pieces, in tokens."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    cuts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedText:
    """The text of a prompt, and of each piece of a completion."""

    prompt: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTexts:
    """The texts of several samples, in order. Without texts `why` says what is missing."""

    texts: tuple[DecodedText, ...] | None
    why: str = ""


def find_tokenizer(run: RunDirectory) -> Path | None:
    """Return the file of a run's tokenizer: beside its samples, in final/, its newest checkpoint or its model's folder.

    None if there is none. The last of these works only where the trainer ran.
    """
    checkpoints = sorted(run.checkpoints.glob("*/" + TOKENIZER_FILE), key=lambda path: path.stat().st_mtime)
    candidates = [run.samples / TOKENIZER_FILE, run.final / TOKENIZER_FILE, *reversed(checkpoints)]
    found = next((path for path in candidates if path.is_file()), None)
    return found or _of_model(run)


Decode = Callable[[Sequence[TokensToDecode]], DecodedTexts]
"""Type of a function that returns the texts of samples. It is called once; any failure is a sentence in its result."""


@contextmanager
def text_decoder(tokenizer: Path | None) -> Iterator[Decode]:
    """Yield a function that decodes with a tokenizer's file, or that says that there is none.

    The child starts at once and loads the tokenizer while the caller finds out what to decode. The context ends it.
    """
    if tokenizer is None:
        why = f"the run has no {TOKENIZER_FILE}, so token ids are shown"
        yield lambda samples: DecodedTexts(texts=None, why=why)
        return
    # -P keeps a folder named `trainer` in the current directory from being imported in place of the package.
    command = [sys.executable, "-P", "-m", PROGRAM, str(tokenizer)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8") as child:
        try:
            yield lambda samples: _decoded(child, tokenizer, samples)
        finally:
            child.kill()  # nothing happens to one that has ended


def _decoded(child: "subprocess.Popen[str]", tokenizer: Path, samples: Sequence[TokensToDecode]) -> DecodedTexts:
    asked = json.dumps([[list(s.prompt_ids), list(s.completion_ids), list(s.cuts)] for s in samples])
    try:
        answer, said = child.communicate(asked, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return _failed(tokenizer, f"no answer within {DEADLINE_S:.0f} s")
    try:
        texts = tuple(DecodedText(prompt=prompt, pieces=tuple(pieces)) for prompt, pieces in json.loads(answer))
    except (ValueError, TypeError):
        return _failed(tokenizer, (said.splitlines() or [f"it ended with exit code {child.returncode}"])[-1])
    return DecodedTexts(texts=texts)


def _failed(tokenizer: Path, why: str) -> DecodedTexts:
    why = f"{tokenizer} cannot be used ({why[:_SHOWN_CHARACTERS]}), so token ids are shown"
    return DecodedTexts(texts=None, why=why)


def _of_model(run: RunDirectory) -> Path | None:
    import yaml  # rarely needed here, and slow to load

    try:
        job = yaml.safe_load(run.config.read_bytes())
        path = Path(job["model"]["path"]) / TOKENIZER_FILE
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None
    return path if path.is_file() else None
