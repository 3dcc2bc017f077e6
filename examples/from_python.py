"""Trains a small model from a script: a fleet on this machine, a job from a dict, its metrics as they come.

It takes seconds on two CPU cores, too few to learn anything: examples/spelling.yaml has the numbers of a whole run.
"""

import periplus

JOB = {
    "name": "from-python",
    "environment": {"name": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}},
    "sampling": {"max_new_tokens": 6, "prompt_tokens": 8},
    "train": {"groups_per_step": 8},
    "eval": {"num_prompts": 32},
    "data": {"size": 2000},
    "steps": 5,
}

# A fleet that runs already, as `periplus up` in a terminal, is joined by `with periplus.connect() as client:` instead.
with periplus.up() as client:
    job = client.submit(JOB)
    for step in job.metrics(follow=True):
        print(step["version"], step["reward_mean"])
    print(job.wait().state, job.run_dir)
