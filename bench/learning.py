"""Claim: the demo's recipe learns its task by reinforcement, from rewards and from nothing else.

One process, one thread, the whole recipe with the runtime's own modules: a built-in model, the warm-up, then GRPO on
samples that are `--staleness` versions old and drawn from bf16-rounded weights, as the asynchronous pipeline delivers
them. `--control` permutes the rewards over the whole batch before the advantages: what is left is then no signal, and
accuracy must not rise. Prints one JSON line; seconds are CPU time: neighbours do not count.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from periplus.environment import gym_tasks
from periplus.environment.environment import EXACT, Environment
from periplus.environment.splits import Splits, split
from rollout_worker.engine import Completion, SampleRequest
from rollout_worker.torch_engine import TorchEngine
from trainer.advantages import group_advantages
from trainer.batch import Sample, collate
from trainer.losses.grpo import GrpoSettings
from trainer.model import load_model, resolve_model_dir
from trainer.schedule import Decay, learning_rate
from trainer.step import StepSettings, train_step
from trainer.warmup import Example, WarmupSettings, warm_up

RECIPE: Mapping[str, Any] = {
    "model": "builtin:qwen3-tiny",
    "task": "spell_backward",
    "task_config": {"min_word_len": 4, "max_word_len": 4},
    "size": 12000,
    "num_warmup": 2048,
    "num_held_out": 512,
    "warmup": {
        "max_steps": 200,
        "batch_rows": 64,
        "peak_learning_rate": 3e-3,
        "ramp_steps": 20,
        "max_grad_norm": 1.0,
        "weight_decay": 0.01,
        "target_loss": 1.0,
        "loss_window": 5,
    },
    "steps": 180,
    "groups": 64,
    "samples": 8,
    "peak_learning_rate": 1e-3,
    "ramp_steps": 10,
    "decay": "cosine",
    "floor": 0.05,
    "betas": (0.9, 0.99),
    "weight_decay": 0.0,
    "clip_low": 0.2,
    "clip_high": 0.2,
    "importance_cap": 2.0,
    "decoupled": True,
    "normalise_std": True,
    "max_grad_norm": 1.0,
    "micro_batch_rows": 256,
    "temperature": 0.8,
    "max_new_tokens": 6,
    "prompt_tokens": 8,
    "batch_rows": 256,
}


@dataclass(slots=True, kw_only=True)
class Run:
    """What the phases share; the only mutable thing here besides the models."""

    recipe: Mapping[str, Any]
    seed: int
    environment: Environment
    splits: Splits
    tokenizer: Any
    actor: Any
    engine: TorchEngine

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        return tuple(self.tokenizer(self.environment.item(index).prompt)["input_ids"])

    def requests(self, indices: Sequence[int], first_group: int, num_samples: int, greedy: bool) -> list[SampleRequest]:
        return [
            SampleRequest(
                prompt_ids=prompt_ids,
                group=first_group + offset,
                sample=sample,
                temperature=self.recipe["temperature"],
                max_new_tokens=self.recipe["max_new_tokens"],
                greedy=greedy,
            )
            for offset, prompt_ids in enumerate(map(self.prompt_ids, indices))
            for sample in range(num_samples)
        ]

    def score(self, index: int, completion: Completion) -> float:
        return self.environment.score(index, self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))


def open_run(recipe: Mapping[str, Any], seed: int, cache: Path) -> Run:
    """Builds the models, the environment and its splits."""
    environment = gym_tasks.load(recipe["task"], recipe["task_config"], seed=seed, size=recipe["size"])
    prompts = [environment.item(index).prompt for index in range(len(environment))]
    directory = resolve_model_dir(recipe["model"], cache, seed)
    actor, tokenizer = load_model(directory)
    sampler, _ = load_model(directory)
    engine = TorchEngine(
        model=sampler,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        batch_rows=recipe["batch_rows"],
        prompt_tokens=recipe["prompt_tokens"],
    )
    return Run(
        recipe=recipe,
        seed=seed,
        environment=environment,
        splits=split(prompts, recipe["num_warmup"], recipe["num_held_out"], seed),
        tokenizer=tokenizer,
        actor=actor,
        engine=engine,
    )


def warm(run: Run) -> tuple[int, float]:
    """Steps taken and last loss of the warm-up."""
    examples = []
    for index in run.splits.warmup:
        answer_ids = run.tokenizer(run.environment.item(index).answer, add_special_tokens=False)["input_ids"]
        completion_ids = (*answer_ids, run.tokenizer.eos_token_id)
        examples.append(Example(prompt_ids=run.prompt_ids(index), completion_ids=completion_ids))
    settings = WarmupSettings(seed=run.seed, **run.recipe["warmup"])
    step, loss = 0, float("nan")
    for progress in warm_up(run.actor, examples, run.tokenizer.pad_token_id, settings):
        step, loss = progress.step, progress.loss
    return step, loss


def publish(model: Any) -> dict[str, torch.Tensor]:
    """The weights as they travel: bf16."""
    return {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}


def install(engine: TorchEngine, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes published weights into the engine's live tensors."""
    for name, tensor in engine.tensors().items():
        tensor.copy_(weights[name])


def accuracy(run: Run) -> float:
    """Greedy share of exact answers on the held-out prompts, with the weights as published."""
    install(run.engine, publish(run.actor))
    held_out = run.splits.held_out
    completions = run.engine.generate(run.requests(held_out, 0, 1, greedy=True), seed=run.seed, version=0)
    scores = [run.score(index, completion) for index, completion in zip(held_out, completions, strict=True)]
    return sum(score == EXACT for score in scores) / len(scores)


def prompt_order(train: Sequence[int], seed: int) -> Iterator[int]:
    """Training prompts, epoch after epoch, each in its own order."""
    epoch = 0
    while True:
        yield from (train[place] for place in np.random.default_rng((seed, epoch)).permutation(len(train)))
        epoch += 1


def rollout(run: Run, indices: Sequence[int], step: int, version: int) -> list[Sample]:
    """One batch of scored samples from the weights now in the engine."""
    first_group = step * run.recipe["groups"]
    requests = run.requests(indices, first_group, run.recipe["samples"], greedy=False)
    completions = run.engine.generate(requests, seed=run.seed, version=version)
    return [
        Sample(
            group=request.group,
            sample=request.sample,
            prompt_ids=request.prompt_ids,
            completion_ids=completion.token_ids,
            behaviour_logprobs=completion.logprobs,
            reward=run.score(indices[request.group - first_group], completion),
        )
        for request, completion in zip(requests, completions, strict=True)
    ]


def reinforce(run: Run, staleness: int, control: bool, verbose: bool) -> dict[str, Any]:
    """The reinforcement phase; returns its seconds by part and its last report."""
    recipe, order = run.recipe, prompt_order(run.splits.train, run.seed)
    # AdamW's own rate is set by each step.
    optimizer = torch.optim.AdamW(
        run.actor.parameters(), lr=0.0, betas=recipe["betas"], weight_decay=recipe["weight_decay"], foreach=True
    )
    settings = StepSettings(
        loss=GrpoSettings(
            clip_low=recipe["clip_low"], clip_high=recipe["clip_high"], importance_cap=recipe["importance_cap"]
        ),
        decoupled=recipe["decoupled"],
        temperature=recipe["temperature"],
        max_grad_norm=recipe["max_grad_norm"],
        micro_batch_rows=recipe["micro_batch_rows"],
    )
    published = deque([publish(run.actor)], maxlen=staleness + 1)
    seconds = {"rollout_s": 0.0, "train_s": 0.0}
    tokens = 0
    for step in range(recipe["steps"]):
        begin = time.process_time()
        install(run.engine, published[0])
        indices = [next(order) for _ in range(recipe["groups"])]
        samples = rollout(run, indices, step, max(0, step - staleness))
        middle = time.process_time()
        batch = collate(samples, run.tokenizer.pad_token_id)
        rewards = np.asarray(batch.rewards)
        mean_reward, exact = rewards.mean(), (rewards == EXACT).mean()
        if control:
            rewards = np.random.default_rng((run.seed, step)).permutation(rewards)
        advantages = group_advantages(rewards.tolist(), batch.groups, normalise_std=recipe["normalise_std"])
        rate = learning_rate(
            step,
            num_steps=recipe["steps"],
            peak=recipe["peak_learning_rate"],
            ramp_steps=recipe["ramp_steps"],
            decay=Decay(recipe["decay"]),
            floor=recipe["floor"],
        )
        report = train_step(run.actor, optimizer, batch, advantages, settings, learning_rate=rate)
        published.append(publish(run.actor))
        end = time.process_time()
        tokens += report.num_tokens
        seconds["rollout_s"] += middle - begin
        seconds["train_s"] += end - middle
        if verbose and step % 10 == 9:
            print(f"{step + 1} reward {mean_reward:.3f} exact {exact:.3f} {report}", file=sys.stderr, flush=True)
            if step % 50 == 49:
                print("  held-out", accuracy(run), file=sys.stderr, flush=True)
    return {**seconds, "tokens": tokens}


def measure(recipe: Mapping[str, Any], seed: int, staleness: int, control: bool, verbose: bool) -> dict[str, Any]:
    """One full run of the recipe; the result line."""
    times = [time.process_time()]
    with tempfile.TemporaryDirectory() as cache:
        run = open_run(recipe, seed, Path(cache))
    times.append(time.process_time())
    warmup_steps, warmup_loss = warm(run)
    times.append(time.process_time())
    before = accuracy(run)
    times.append(time.process_time())
    if verbose:
        print("before", before, warmup_steps, warmup_loss, file=sys.stderr)
    phases = reinforce(run, staleness, control, verbose)
    after = accuracy(run)
    times.append(time.process_time())
    return {
        "bench": "learning",
        "seed": seed,
        "staleness": staleness,
        "control": control,
        "accuracy_before": before,
        "accuracy_after": after,
        "warmup_steps": warmup_steps,
        "warmup_loss": round(warmup_loss, 3),
        "warmup_examples": len(run.splits.warmup),
        "open_s": round(times[1] - times[0], 2),
        "warmup_s": round(times[2] - times[1], 2),
        "eval_s": round(times[3] - times[2], 2),
        "cpu_s": round(times[4] - times[0], 2),
        **{name: round(value, 2) for name, value in phases.items()},
    }


def main() -> int:
    """Parses the arguments, runs once, prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="recipe overrides, dotted keys")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = json.loads(json.dumps(dict(RECIPE)))
    for override in arguments.set:
        path, value = override.split("=", 1)
        *parents, leaf = path.split(".")
        node = recipe
        for parent in parents:
            node = node[parent]
        node[leaf] = json.loads(value)
    result = measure(recipe, arguments.seed, arguments.staleness, arguments.control, arguments.verbose)
    print(json.dumps({**result, "overrides": arguments.set}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
