"""Environments: where prompts come from and how a completion is scored. No model, no tokenizer, no torch."""
