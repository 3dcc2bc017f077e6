"""Token ids to text, with the tokenizer that a run has kept, in a child process.

The kernel imports no tokenizer, and a damaged tokenizer file may end the process that reads it. So the program
`python -m trainer.data.decoding` does it: it reads one JSON object from standard input and writes one to standard
output. On a machine without the tokenizers library, or with a run that has no tokenizer, there is no text, and a
sentence that says why; token ids are shown then.

A completion is cut into pieces where the policy changes, or where sampled tokens and context meet. Its text is decoded
as a whole and cut at the same places, since tokens alone may decode otherwise than tokens in a text.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

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
    """The texts of several samples, in order, and the tokenizer's file. Without texts `why` says what is missing."""

    texts: tuple[DecodedText, ...] | None
    tokenizer: str = ""
    why: str = ""


def find_tokenizer(run: RunDirectory) -> Path | None:
    """Return the file of a run's tokenizer: beside its samples, in final/, its newest checkpoint or its model's folder.

    None if there is none. The last of these works only where the trainer ran.
    """
    checkpoints = sorted(run.checkpoints.glob("*/" + TOKENIZER_FILE), key=lambda path: path.stat().st_mtime)
    candidates = [run.samples / TOKENIZER_FILE, run.final / TOKENIZER_FILE, *reversed(checkpoints)]
    found = next((path for path in candidates if path.is_file()), None)
    return found or _of_model(run)


def decode_texts(tokenizer: Path | None, samples: Sequence[TokensToDecode]) -> DecodedTexts:
    """Return the texts of samples. Any failure is a sentence in the result."""
    if tokenizer is None:
        return DecodedTexts(texts=None, why=f"the run has no {TOKENIZER_FILE}, so token ids are shown")
    if not samples:
        return DecodedTexts(texts=(), tokenizer=str(tokenizer))
    # -P keeps a folder named `trainer` in the current directory from being imported in place of the package.
    command = [sys.executable, "-P", "-m", PROGRAM]
    asked = {
        "tokenizer": str(tokenizer),
        "samples": [[list(s.prompt_ids), list(s.completion_ids), list(s.cuts)] for s in samples],
    }
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        found = json.loads(done.stdout)
        texts = tuple(DecodedText(prompt=prompt, pieces=tuple(pieces)) for prompt, pieces in found["texts"])
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        why = error if isinstance(error, OSError | subprocess.TimeoutExpired) else _last_line(done.stderr)
        why = f"{tokenizer} cannot be used ({str(why)[:_SHOWN_CHARACTERS]}), so token ids are shown"
        return DecodedTexts(texts=None, why=why)
    return DecodedTexts(texts=texts, tokenizer=str(tokenizer))


def _of_model(run: RunDirectory) -> Path | None:
    try:
        job = yaml.safe_load(run.config.read_bytes())
        path = Path(job["model"]["path"]) / TOKENIZER_FILE
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None
    return path if path.is_file() else None


def _last_line(text: str) -> str:
    return (text.splitlines() or ["the decoding process wrote nothing"])[-1]
