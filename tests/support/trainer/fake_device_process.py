"""A process that takes training steps on the fake device, and prints what they report as one line of JSON.

`python -m tests.support.trainer.fake_device_process` first takes each step of CASES on the CPU, then the same on the
fake device. It prints, for each case, the figures of both and the number of reads of each.
"""

import copy
import json
import sys
from typing import Any

import torch

from periplus.values.probe_prompts import probe_prompts
from tests.support.trainer.fake_device import FakeDevice, to_fake_device, unwrapped, use_fake_device
from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.data.dataset import Example
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.learning.warmup import WarmupSettings, warm_up
from trainer.publishing import reference_logprobs
from trainer.recipe import build_learner

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo"}},
    "grpo with reference": {"algorithm": {"name": "grpo", "kl_coefficient": 0.1}},
    "many micro-batches": {"algorithm": {"name": "grpo"}, "train": {"micro_batch_samples": 1}},
    "gspo": {"algorithm": {"name": "gspo"}},
    "dapo": {"algorithm": {"name": "dapo"}},
    "cispo": {"algorithm": {"name": "cispo"}},
    "m2po": {
        "algorithm": {"name": "m2po", "m2_threshold": 1e-3},
        "train": {"minibatches": 2, "epochs": 2, "micro_batch_samples": 3},
    },
    "rloo": {"algorithm": {"name": "rloo", "kl_coefficient": 0.1}},
    "reinforce++": {"algorithm": {"name": "reinforce_plus_plus", "kl_coefficient": 0.1}},
    "ppo": {
        "algorithm": {"name": "ppo", "kl_coefficient": 0.1, "bootstrap_truncated": True},
        "train": {"minibatches": 2, "epochs": 2, "micro_batch_samples": 3},
    },
    "masked sequences": {
        "algorithm": {"name": "grpo", "importance_correction": "masked", "importance_level": "sequence"}
    },
    "recomputed in bfloat16": {
        "algorithm": {"name": "grpo"},
        "train": {"dtype": "bfloat16", "activation_checkpointing": "on"},
    },
}


def step(changes: dict[str, Any], *, faked: bool) -> dict[str, Any]:
    """Take one step on the CPU or on the fake device. Return its figures, the sum of the weights, and the reads."""
    actor, samples = tiny_model(), sampled(tiny_model(), 0)
    train = {"dtype": "float32"} | changes.get("train", {})
    job = make_job(**{**changes, "train": train})
    if faked:
        to_fake_device(actor)
    with FakeDevice() as device:
        learner = build_learner(job, actor)
        device.num_reads = 0
        report = learner.step(samples, consumer=CONSUMER, learning_rate=1e-2)
        num_reads = device.num_reads
    assert report is not None
    total = sum(float(unwrapped(parameter.detach()).abs().sum()) for parameter in actor.parameters())
    return {**report.values(), "weights": total, "num_reads": num_reads, "num_updates": report.num_updates}


def others(*, faked: bool) -> dict[str, list[float]]:
    """Return the losses of a warm-up, and the log-probabilities of the probe."""
    model = tiny_model()
    if faked:
        to_fake_device(model)
    settings = WarmupSettings(
        max_steps=3,
        batch_rows=4,
        peak_learning_rate=1e-2,
        ramp_steps=1,
        max_grad_norm=1.0,
        weight_decay=0.0,
        target_loss=0.0,
        loss_window=2,
        micro_batch=MicroBatchLimits(rows=3, tokens=100),
        seed=0,
    )
    examples = [Example(prompt_ids=(3, token), completion_ids=(token, 2)) for token in range(5, 15)]
    with FakeDevice():
        losses = [progress.loss for progress in warm_up(PolicyScorer(model), examples, settings)]
        probe = reference_logprobs.logprobs(model, probe_prompts(0, model.config.vocab_size))
    return {"losses": losses, "probe": probe.flatten().tolist()[:20]}


def main() -> None:
    torch.set_num_threads(1)
    use_fake_device()
    found: dict[str, Any] = {
        name: [step(copy.deepcopy(changes), faked=faked) for faked in (False, True)] for name, changes in CASES.items()
    }
    found["others"] = [others(faked=faked) for faked in (False, True)]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
