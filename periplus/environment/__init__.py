"""Environments: the source of a job's prompts, and the scoring of completions.

A job's settings come in; indexed problems, scores and disjoint sets of problems go out. `environment` is the protocol,
`gym_tasks` and `jsonl` implement it, `job_environment` builds the environment of a job, and `splits` divides its
problems into warm-up, training and held-out sets. `final_answer` finds the answer in a completion with thoughts.
Nothing here knows a model, a policy or torch.
"""
