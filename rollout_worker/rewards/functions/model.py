"""The reward `model`: one output of a sequence classifier, such as a preference reward model, for each completion.

The process of a reward model is the only one of its kind, and the only reward process that imports torch. The model
must have the digest that the job names: regions would otherwise train on the scores of different models.

*Shapes:* B texts of a batch, T tokens, padded on the right.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from periplus.environment.rewards.completions import BatchFunction, ScoredText, Settings

SHOWN = 5
"""Largest number of tensor names in one message. Chosen by hand."""

MAX_TEXTS = 16
"""Most completions in one pass of the model. It bounds memory; larger batches are hardly faster on a CPU. Chosen by
hand."""


def build(settings: Settings) -> BatchFunction:
    """Return the function. Raises: OSError, ValueError if the checkpoint cannot be loaded or is another one."""
    from periplus.job.reward_models import checkpoint_digest

    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = Path(settings["path"])
    if (digest := checkpoint_digest(folder)) != settings["digest"]:
        raise ValueError(
            f"the reward model in {folder} has the digest {digest}, but the job was submitted with "
            f"{settings['digest']}; put the same checkpoint there on every machine"
        )
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
    model: Any
    model, found = AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
    )
    # transformers fills what the files lack with random numbers, such as the head of a model that is no classifier.
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(
            f"the files in {folder} lack {', '.join(lacking[:SHOWN])} of {type(model).__name__}; give a sequence "
            "classifier, such as a reward model, and not a language model"
        )
    model = model.eval().requires_grad_(False).to(settings["device"])
    num_outputs = int(model.config.num_labels)
    if settings["output"] >= num_outputs:
        raise ValueError(f"output is {settings['output']}, but the model in {folder} has {num_outputs} outputs")
    # The last token of a padded row is found by the padding token's id, which must be that of the tokenizer.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id

    def score(texts: Sequence[ScoredText]) -> Sequence[float]:
        read = [text_of(text, tokenizer, settings["template"]) for text in texts]
        inputs_BT = tokenizer(
            read,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=settings["max_tokens"],
            add_special_tokens=not is_framed(tokenizer, settings["template"]),
        ).to(settings["device"])
        with torch.inference_mode():
            logits: list[float] = model(**inputs_BT).logits[:, settings["output"]].float().tolist()
        return logits

    return BatchFunction(score=score, max_texts=MAX_TEXTS)


def text_of(text: ScoredText, tokenizer: Any, template: str | None) -> str:
    """Return what the model reads of a problem and a completion of it."""
    if template is not None:
        return template.replace("{completion}", text.completion).replace("{prompt}", text.prompt)
    if not is_framed(tokenizer, template):
        return text.prompt + text.completion
    asked = [dict(message) for message in text.messages] or [{"role": "user", "content": text.prompt}]
    said = [*asked, {"role": "assistant", "content": text.completion}]
    return str(tokenizer.apply_chat_template(said, tokenize=False))


def is_framed(tokenizer: Any, template: str | None) -> bool:
    """Return whether the tokenizer's chat template frames the text. It writes the special tokens, such as BOS, too."""
    return template is None and bool(getattr(tokenizer, "chat_template", None))
