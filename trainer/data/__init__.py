"""Inputs of a run: the problems that it trains on, and the model and tokenizer that it starts from.

In come a job's settings and paths. Out come problems in their order, a model in float32 and a tokenizer. Nothing here
may know of the ledger, of policy versions or of the network.

    dataset     encodes prompts, divides the problems into sets, and orders those for training
    pretrained  checks and loads a Hugging Face checkpoint directory
    model       finds the directory that a job names, or creates a built-in model
    decoding    a program that turns token ids into text, for those who look at samples
    characters  the character tokenizer of the built-in models
"""
