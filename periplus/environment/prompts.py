"""Frames prompts as the model expects them, and encodes them as tokens: the same in the trainer and in each worker."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from periplus.environment.environment import Item
from periplus.errors import ConfigError, one_line
from periplus.job.model_section import NO_TEMPLATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEncoder:
    """Frames and encodes the prompts of a job.

    `tokenizer` is a tokenizer of transformers, or something that is called like one. `template` is the text of a chat
    template in Jinja, `NO_TEMPLATE`, or None for the tokenizer's own. `arguments` are passed to the template by name.
    """

    tokenizer: Any
    template: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

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

        Raises: ConfigError if the template refuses the messages.
        """
        ids = self.tokenizer(item.prompt)["input_ids"] if self.is_plain else self._framed(item, tokenize=True)
        return tuple(int(token) for token in ids)

    def text(self, item: Item) -> str:
        """Return the framed prompt as text. Raises: ConfigError if the template refuses the messages."""
        return item.prompt if self.is_plain else str(self._framed(item, tokenize=False))

    def _framed(self, item: Item, *, tokenize: bool) -> Any:
        messages = [{"role": message.role, "content": message.content} for message in item.messages]
        try:
            return self.tokenizer.apply_chat_template(
                messages or [{"role": "user", "content": item.prompt}],
                chat_template=self.template,
                add_generation_prompt=True,
                tokenize=tokenize,
                return_dict=False,
                **self.arguments,
            )
        except Exception as error:  # a template is a program of somebody else, and may raise anything
            raise ConfigError(
                f"the chat template refuses problem {item.index}: {one_line(error)}; set model.chat_template to one "
                f"that takes the roles {', '.join(dict.fromkeys(each['role'] for each in messages)) or 'user'}"
            ) from error
