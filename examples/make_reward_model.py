"""Makes a tiny random reward model in the folder given as argument, for examples/preference.yaml."""

import sys

import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from trainer.data.model import build_tokenizer


def main() -> None:
    """Write a sequence classifier with one output, and its tokenizer, to the folder."""
    folder = sys.argv[1]
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
