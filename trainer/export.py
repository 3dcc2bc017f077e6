"""The final model as Hugging Face loads it: bfloat16 weights, configuration, tokenizer."""

import copy
from pathlib import Path
from typing import Any

import torch

from periplus.digest import state_digest
from trainer.publish import bf16_state


def final_model(model: Any, tokenizer: Any, directory: Path, published_digest: bytes) -> None:
    """Save what was published last, and nothing else: the digest is checked before a byte is written."""
    exported = copy.deepcopy(model).to(torch.bfloat16)
    assert state_digest(bf16_state(exported)) == published_digest, "the model differs from what was published last"
    exported.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
