"""Finds the token with which a completion's text first contains a stop string: the same way for every engine.

The text is the one that a scorer sees: with special tokens, but without end tokens and padding. A completion ends at
the token that completes a stop string, and keeps this token and those before it, because the policy sampled them; a
scorer gets the text before the stop string. A stop string that is a special token is found by the token's id too, so
that padding, which has no text, can be one.

One token may change the text of earlier ones (a character of several bytes, a space that the first token of a text
loses), so that a text cannot be added up from the texts of its tokens. A `StopWatch` therefore decodes the last tokens
together. It keeps as many as the longest stop string needs, so that the work for a token does not grow with the
completion.
"""

from collections.abc import Sequence

from periplus.environment.completions import CompletionDecoder

CONTEXT_CHARACTERS = 16
"""Characters at the beginning of a shortened text in which no stop string is looked for, because without the tokens
before them they may be decoded otherwise. Such differences are a leading space, the mark of a word's continuation, or
the bytes of one character. Chosen by hand: several times these."""


class StopStrings:
    """The texts that end a completion. The first `min_new_tokens` tokens are not looked at.

    The engine may use `decoder` in a thread of its own, so that no other thread should use the same tokenizer.
    """

    def __init__(self, decoder: CompletionDecoder, texts: Sequence[str], min_new_tokens: int = 0) -> None:
        if not texts or not all(texts):
            raise ValueError(f"stop strings are {list(texts)!r}; give at least one, and none that is empty")
        self.texts, self.min_new_tokens = tuple(texts), min_new_tokens
        self._decoder = decoder
        found = (decoder.special_id(text) for text in texts)
        self.special_ids = frozenset(token for token in found if token is not None)

    def watch(self) -> "StopWatch":
        """Return what looks for these texts in one completion."""
        return StopWatch(self)

    def has_no_text(self, token: int) -> bool:
        """Return whether the text of a completion does not show this token."""
        return token in self._decoder.hidden

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, without end tokens and padding."""
        return self._decoder.text(token_ids)

    def before(self, token_ids: Sequence[int]) -> str:
        """Return a completion's text up to where its first stop string begins; all of it if it has none."""
        return self._decoder.text_before(token_ids, self.texts, self.min_new_tokens)


class StopWatch:
    """Looks for stop strings in the tokens of one completion, one after the other."""

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._num_seen = 0
        # The last tokens that have text, and whether there were others before them.
        self._window: list[int] = []
        self._is_shortened = False
        # A stop string that the next token completes begins within this many characters of the end, or later.
        self._needed = max(map(len, strings.texts)) + 2 * CONTEXT_CHARACTERS

    def completes(self, token: int) -> bool:
        """Add the next token, and return whether a stop string is complete with it."""
        self._num_seen += 1
        if self._num_seen <= self._strings.min_new_tokens:
            return False
        if token in self._strings.special_ids:
            return True
        if self._strings.has_no_text(token):
            return False
        self._window.append(token)
        text = self._strings.decode(self._window)
        first = CONTEXT_CHARACTERS if self._is_shortened else 0
        if any(text.find(each, first) >= 0 for each in self._strings.texts):
            return True
        # Shortened only when it is twice as long as needed, so that most tokens decode once.
        if len(text) > 2 * self._needed:
            self._shorten()
        return False

    def _shorten(self) -> None:
        # Halves of the window are dropped for as long as the rest has the text that is needed.
        drop = len(self._window) // 2
        while drop:
            if len(self._strings.decode(self._window[drop:])) >= self._needed:
                del self._window[:drop]
                self._is_shortened = True
            drop //= 2
