"""Frames prompts as the model expects them, and encodes them as tokens: the same in the trainer and in each worker."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from periplus.environment.completions import CompletionDecoder
from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError, one_line
from periplus.job.model_section import NO_TEMPLATE

PLACEHOLDER = "ANSWER"
"""Text that stands for what the model said when the messages around it are rendered. No template gives it a meaning."""

SHOWN_CHARACTERS = 60
"""Characters of two renderings that an error shows where they differ. Chosen by hand."""

PROBE = "a"
"""Text that is encoded to learn which tokens a tokenizer puts around a prompt. Any tokenizer can encode it."""


@dataclass(frozen=True, kw_only=True)
class PromptEncoder:
    """Frames and encodes the prompts of a job, and decodes its completions.

    `tokenizer` is a tokenizer of transformers, or something that is called like one. `template` is the text of a chat
    template in Jinja, `NO_TEMPLATE`, or None for the tokenizer's own. `arguments` are passed to the template by name.
    `end_ids` are the model's end tokens; without any, the tokenizer's own one is. (It has no slots, for the cached
    properties.)
    """

    tokenizer: Any
    template: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    end_ids: tuple[int, ...] = ()

    @cached_property
    def decoder(self) -> CompletionDecoder:
        """What decodes the model's completions."""
        return CompletionDecoder(tokenizer=self.tokenizer, end_ids=self.end_ids)

    @property
    def is_plain(self) -> bool:
        """Whether prompts are encoded as plain text: by the job's choice, or because there is no template."""
        has_own = bool(getattr(self.tokenizer, "chat_template", None))
        return self.template == NO_TEMPLATE or (self.template is None and not has_own)

    @property
    def description(self) -> str:
        """A text for a person that says how prompts are framed."""
        if self.is_plain:
            return "plain text, without a chat template"
        whose, text = ("the job's", self.template) if self.template else ("the model's", self.tokenizer.chat_template)
        digest = hashlib.sha256(str(text).encode()).hexdigest()[:12]
        return f"{whose} chat template (sha256 {digest})"

    def encode(self, item: Item) -> tuple[int, ...]:
        """Return the token ids of a problem's prompt up to where the model's answer begins.

        Around a plain text the tokenizer's own special tokens are put, such as BOS, unless the text has them already.
        An end token is never put behind it, because the model's answer would begin after the end of a text.
        Raises: ConfigError if the template refuses the messages.
        """
        ids = self._plain_ids(item.prompt) if self.is_plain else self._framed(item, tokenize=True)
        return tuple(int(token) for token in ids)

    def text(self, item: Item) -> str:
        """Return the framed prompt as text. Raises: ConfigError if the template refuses the messages."""
        return item.prompt if self.is_plain else str(self._framed(item, tokenize=False))

    def continuation(
        self, item: Item, exchanges: Sequence[Sequence[Message]], last_token: int | None = None
    ) -> tuple[int, ...]:
        """Return the token ids between the end token of the model's last turn and the beginning of its next one.

        `exchanges` are the messages after each turn of the model so far, the newest last. `last_token` is the token
        that ended the model's newest turn. Tokens of earlier turns are never encoded again: the conversation is
        rendered with and without the newest messages, with a placeholder for what the model said, and the difference
        is encoded. Without a template the messages' texts are appended.
        Raises: ConfigError if the template does not render a longer conversation as a continuation of the shorter one.
        """
        if self.is_plain:
            added = "".join(message.content for message in exchanges[-1])
        else:
            before, after = (self._conversation(item, part) for part in (exchanges[:-1], exchanges))
            # The template may end a turn with another of the model's end tokens than the model has.
            ends = {*self.decoder.ends} | ({last_token} if last_token is not None else set())
            spoken = {f"{before}{PLACEHOLDER}{self.decoder.token_text(token)}" for token in ends}
            said = max((each for each in spoken if after.startswith(each)), key=len, default=None)
            if said is None:
                raise ConfigError(_not_stable(before, after, str(self.tokenizer.eos_token)))
            added = after[len(said) :]
        return self._bare_ids(added)

    @cached_property
    def turn_end(self) -> tuple[int | None, str]:
        """The token with which the chat template ends a turn of the model, and the text that it puts there.

        The token is None if the turn ends with ordinary text, or with nothing, or if there is no template.
        """
        if self.is_plain:
            return None, ""
        said = (Message(role="user", content=PROBE), Message(role="assistant", content=PLACEHOLDER))
        try:
            framed = self._framed(Item(index=0, prompt="", answer="", messages=said), tokenize=False, asks=False)
        except ConfigError:  # a template for other roles; it is refused with the first prompt that it does not take
            return None, ""
        text = str(framed).rpartition(PLACEHOLDER)[2].strip()
        ids = self._bare_ids(text)
        return (ids[0] if ids and ids[0] in self.decoder.special else None), text

    @property
    def end_of_answers(self) -> int:
        """The token that ends an answer for the model to imitate: the template's end of a turn if it is an end token,
        else the tokenizer's own end token."""
        token, _ = self.turn_end
        return token if token is not None and token in self.decoder.ends else int(self.tokenizer.eos_token_id)

    def _plain_ids(self, text: str) -> tuple[int, ...]:
        before, after = self._around
        ids = self._bare_ids(text)
        return (() if ids[: len(before)] == before else before) + ids + after

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the tokenizer puts before and after a text, without end tokens after it."""
        bare = self._bare_ids(PROBE)
        framed = tuple(int(token) for token in self.tokenizer(PROBE)["input_ids"])
        start = next(at for at in range(len(framed)) if framed[at : at + len(bare)] == bare)
        after = framed[start + len(bare) :]
        return framed[:start], tuple(token for token in after if token not in self.decoder.ends)

    def _bare_ids(self, text: str) -> tuple[int, ...]:
        return tuple(int(token) for token in self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _conversation(self, item: Item, exchanges: Sequence[Sequence[Message]]) -> str:
        messages = list(item.messages) or [Message(role="user", content=item.prompt)]
        for said in exchanges:
            messages += [Message(role="assistant", content=PLACEHOLDER), *said]
        return str(self._framed(replace(item, messages=tuple(messages)), tokenize=False))

    def _framed(self, item: Item, *, tokenize: bool, asks: bool = True) -> Any:
        messages = [message.to_mapping() for message in item.messages]
        try:
            return self.tokenizer.apply_chat_template(
                messages or [{"role": "user", "content": item.prompt}],
                chat_template=self.template,
                add_generation_prompt=asks,
                tokenize=tokenize,
                return_dict=False,
                **self.arguments,
            )
        except Exception as error:  # a template is a program of somebody else, and may raise anything
            raise ConfigError(
                f"the chat template refuses problem {item.index}: {one_line(error)}; set model.chat_template to one "
                f"that takes the roles {', '.join(dict.fromkeys(each['role'] for each in messages)) or 'user'}"
            ) from error


def _not_stable(before: str, after: str, eos: str) -> str:
    spoken = f"{before}{PLACEHOLDER}{eos}"
    place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(spoken, after, strict=False)))
    here = spoken[place:][:SHOWN_CHARACTERS]
    there = after[place:][:SHOWN_CHARACTERS]
    return (
        "the chat template renders a turn of the model otherwise than the model has sampled it, or changes earlier "
        f"messages when new ones follow: {here!r} became {there!r}; an environment of several turns needs a template "
        "that only appends, and that ends a turn with the tokenizer's end token: set model.chat_template"
    )
