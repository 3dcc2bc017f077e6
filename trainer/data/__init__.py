"""What a run trains on and starts from: problems, tokenizers and the checkpoint that a job names.

`dataset` orders the problems, `pretrained` judges a Hugging Face checkpoint by its headers, `model` loads it or makes a
built-in model, `characters` is the built-in models' tokenizer. In come a job's keys and paths; out come problems,
tensors and tokenizers. Nothing here knows of the ledger, of versions or of the network.
"""
