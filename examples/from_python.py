"""Trains a small model from a script: a fleet on this machine, a job from a dict, its metrics as they come.

Five steps take seconds on two CPU cores, and teach nothing: examples/spelling.yaml has the numbers of a whole run.
"""

import periplus

words = {"name": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}}
job = {"name": "from-python", "environment": words, "sampling": {"prompt_tokens": 8, "max_new_tokens": 6}, "steps": 5}

with periplus.up() as client:  # a fleet on this machine; periplus.connect() joins one that runs already
    run = client.submit(job)
    for step in run.metrics(follow=True):
        print(step["version"], step["reward_mean"])
    print(run.wait().state, run.run_dir)
