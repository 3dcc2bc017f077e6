"""The character tokenizer of the built-in models, without torch and transformers: it is there in milliseconds.

It covers printable ASCII in lower case (twice the letters would be twice as much to learn; sets of prompts are
therefore kept disjoint regardless of case). The fixed sentences that reasoning-gym puts around some tasks are one token
each (`TEMPLATES`): they carry no information within a task and would be most of the prompt. A prompt is framed as
`<bos> prompt <answer>`; a completion is `answer <eos>`.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PAD, BOS, EOS, ANSWER, UNKNOWN = "<pad>", "<bos>", "<eos>", "<answer>", "<unk>"
SPECIALS = (PAD, BOS, EOS, ANSWER, UNKNOWN)
CHARACTERS = ("\n", *(chr(code) for code in range(32, 127) if not chr(code).isupper()))
TEMPLATES = (
    "Spell this word backward (example: sun -> nus): ",
    "State the final answer to the following arithmetic problem: ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
)


def character_tokenizer() -> Tokenizer:
    """The tokenizer described above."""
    symbols = (*SPECIALS, *CHARACTERS)
    inner = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token=UNKNOWN))
    # Oniguruma's (?m) is what others call (?s): the dot also matches a line break.
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_tokens([AddedToken(text, normalized=False) for text in TEMPLATES])
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {ANSWER}", special_tokens=[(name, symbols.index(name)) for name in (BOS, ANSWER)]
    )
    return inner
