"""The character tokenizer of the built-in models. It needs neither torch nor transformers, so it loads in milliseconds.

Each character is one token. The vocabulary is printable ASCII in lower case and the line break, and text is converted
to lower case, because twice the letters would be twice as much to learn. (Sets of prompts are therefore kept disjoint
regardless of case.) The fixed sentences that reasoning-gym puts around some tasks are one token each (`TEMPLATES`).
They carry no information within a task, and would otherwise be most of the prompt. A prompt is encoded as `<bos> prompt
<answer>`, and a completion is `answer <eos>`.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PAD, BOS, EOS, ANSWER, UNKNOWN = "<pad>", "<bos>", "<eos>", "<answer>", "<unk>"
SPECIALS = (PAD, BOS, EOS, ANSWER, UNKNOWN)
"""Special tokens, in the order of their ids from 0."""

CHARACTERS = ("\n", *(chr(code) for code in range(32, 127) if not chr(code).isupper()))
"""Characters of the vocabulary, in the order of their ids after the special tokens."""

TEMPLATES = (
    "Spell this word backward (example: sun -> nus): ",
    "State the final answer to the following arithmetic problem: ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
)
"""Sentences of reasoning-gym's tasks that become one token each, with the ids after the characters."""


def character_tokenizer() -> Tokenizer:
    """Return the character tokenizer. It adds `<bos>` and `<answer>` around a prompt that is encoded."""
    symbols = (*SPECIALS, *CHARACTERS)
    inner = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token=UNKNOWN))
    inner.normalizer = normalizers.Lowercase()
    # One token per character. In Oniguruma, (?m) means that the dot also matches a line break.
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_tokens([AddedToken(text, normalized=False) for text in TEMPLATES])
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {ANSWER}", special_tokens=[(name, symbols.index(name)) for name in (BOS, ANSWER)]
    )
    return inner
