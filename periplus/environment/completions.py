"""The end tokens of a model, and the text of its completions.

A model may end its turns with several tokens. Its checkpoint names them in up to three places, which often differ:
`generation_config.json`, `config.json` and the tokenizer. All of them end a completion. The text of a completion shows
special tokens, such as `<think>`, because they are part of what the model said; only end tokens and padding are left
out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

CONFIG_FILES = ("generation_config.json", "config.json")
"""Files of a checkpoint that may name end tokens, under the key `eos_token_id`."""


def end_token_ids(folder: Path | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of all tokens that end a completion, in ascending order.

    `folder` has the checkpoint's configuration files; None if there are none. Ids beyond the model's vocabulary, which
    may be longer than the tokenizer's, are left out.
    """
    named = [getattr(tokenizer, "eos_token_id", None)]
    sizes = [len(tokenizer)] if hasattr(tokenizer, "__len__") else []
    for file in () if folder is None else (folder / name for name in CONFIG_FILES):
        try:
            tree = json.loads(file.read_bytes())
        except (OSError, ValueError):  # it need not be there, and other checks refuse a damaged one
            continue
        for section in (tree, tree.get("text_config") if isinstance(tree, dict) else None):
            if isinstance(section, dict):
                value = section.get("eos_token_id")
                named += value if isinstance(value, list) else [value]
                sizes += [size for size in (section.get("vocab_size"),) if isinstance(size, int)]
    known = {each for each in named if isinstance(each, int) and not isinstance(each, bool)}
    return tuple(sorted(each for each in known if each >= 0 and (not sizes or each < max(sizes))))


@dataclass(frozen=True, kw_only=True)
class CompletionDecoder:
    """Decodes the tokens of completions. `tokenizer` is one of transformers, or something that decodes like one.

    `end_ids` are the model's end tokens; without any, the tokenizer's own one is. (It has no slots, for the cached
    properties.)
    """

    tokenizer: Any
    end_ids: tuple[int, ...] = ()

    @cached_property
    def ends(self) -> frozenset[int]:
        """Ids of the tokens that end a completion."""
        return frozenset(self.end_ids or end_token_ids(None, self.tokenizer))

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Ids of the tokens that the text of a completion does not show: end tokens and padding."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return self.ends if pad is None else self.ends | {pad}

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of special tokens, and of others that were added to the vocabulary as a whole."""
        return frozenset({*getattr(self.tokenizer, "all_special_ids", ()), *self._added})

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, with special tokens but without end tokens and padding."""
        shown = [token for token in token_ids if token not in self.hidden]
        return str(self.tokenizer.decode(shown, skip_special_tokens=False))

    def text_before(self, token_ids: Sequence[int], stops: Sequence[str], min_new_tokens: int = 0) -> str:
        """Return the text of these tokens up to where the first of some stop strings begins; all of it without one.

        In the first `min_new_tokens` tokens none is looked for.
        """
        text, looked_at = self.text(token_ids), self.text(token_ids[min_new_tokens:])
        places = [place for each in stops if (place := looked_at.find(each)) >= 0]
        return text[: len(text) - len(looked_at) + min(places)] if places else text

    def token_text(self, token: int) -> str:
        """Return the text of one token, also of one that the text of a completion does not show."""
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token that has exactly this text, or None."""
        found = self.tokenizer.convert_tokens_to_ids(text) if self.special else None
        return found if found in self.special else None

    @property
    def _added(self) -> Sequence[int]:
        return tuple(getattr(self.tokenizer, "added_tokens_decoder", None) or ())
