"""The shared library of Periplus: values, codecs, errors, RPC, job files, environments, views and the command's entry.

Every service and the planner import it. It imports none of them, and neither torch, vllm nor transformers.
"""
