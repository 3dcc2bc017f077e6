"""How completions are sampled in an evaluation, and the bounds of stop strings, which training has too.

Training draws from the whole distribution at one temperature: the trainer's log-probabilities are over the whole
vocabulary. An evaluation trains nothing, so it may restrict what is drawn.
"""

from typing import Annotated

from pydantic import Field

from periplus.config.loading import Config

MAX_STOP_STRINGS = 16
"""Largest number of stop strings. Each token is checked against all of them. Chosen by hand."""

MAX_STOP_CHARACTERS = 128
"""Largest length of a stop string in characters. The end of the text, a few times this long, is decoded again at each
token. Chosen by hand."""

StopStrings = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)], ...],
    Field(max_length=MAX_STOP_STRINGS),
]
"""Texts that end a completion."""


class EvalSampling(Config):
    """How the completions of an evaluation are sampled. By default greedily, and else as for training."""

    temperature: float = Field(default=0.0, ge=0, le=4)
    """The logits are divided by this before sampling. 0 always takes the likeliest token. No unit."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Tokens are drawn from the smallest set of likeliest tokens that together have at least this probability. 1 draws
    from all tokens. It needs a temperature above 0."""

    top_k: int = Field(default=0, ge=0, le=1_000_000)
    """Tokens are drawn from this number of likeliest tokens. 0 draws from all tokens. It needs a temperature above 0.
    With top_p, top_k applies first."""

    min_new_tokens: int = Field(default=0, ge=0, le=131_072)
    """The first tokens, of this number, are no end tokens, and stop strings are looked for after them alone."""

    max_new_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """Largest length of a completion in tokens, including the end token. It is at most sampling.max_new_tokens, which
    is the default."""

    stop: StopStrings | None = None
    """Texts that end a completion, as sampling.stop does in training. The default is sampling.stop."""


def eval_sampling_disagreements(section: EvalSampling, key: str, *, max_new_tokens: int) -> list[str]:
    """Return a refusal for each setting at `key` that contradicts another one, or the job's own `max_new_tokens`."""
    refusals = []
    if section.temperature == 0:
        refusals += [
            f"{key}.{name} is {value}, but {key}.temperature is 0, which always takes the likeliest token; give a "
            f"temperature above 0, or remove {key}.{name}"
            for name, value, default in (("top_p", section.top_p, 1.0), ("top_k", section.top_k, 0))
            if value != default
        ]
    longest = max_new_tokens if section.max_new_tokens is None else section.max_new_tokens
    if longest > max_new_tokens:
        refusals.append(
            f"{key}.max_new_tokens is {longest}, but sampling.max_new_tokens, for which workers reserve memory, is "
            f"only {max_new_tokens}; lower the one or raise the other"
        )
    if section.min_new_tokens > longest:
        refusals.append(
            f"{key}.min_new_tokens is {section.min_new_tokens}, but completions have at most {longest} tokens; lower it"
        )
    return refusals
