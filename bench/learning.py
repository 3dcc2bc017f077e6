"""Claim: the demo's recipe, examples/spelling.yaml, learns its task by reinforcement, from rewards and nothing else.

One process with one thread runs the whole recipe with the runtime's own modules: a built-in model, the warm-up, then
GRPO. Samples are `--staleness` versions old and drawn from bf16-rounded weights, as the asynchronous pipeline delivers
them. `--control` permutes the rewards over the whole batch before advantages are computed. Then there is no signal, and
accuracy must not rise. The output is one JSON line. Seconds are CPU time, so other programs do not count.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from periplus.codec.weights.layout import layout_of
from periplus.environment.environment import EXACT
from periplus.environment.job_environment import trainer_environment
from periplus.environment.prompts import PromptEncoder
from periplus.job.job_file import JobFile, load_job
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason
from periplus.values.weight_state import Tensor
from rollout_worker.engines.engine import Completion, OnSwap, SampleRequest, WholeState
from rollout_worker.engines.torch_engine import TorchEngine
from trainer.data.dataset import Dataset, read_prompts, split_prompts, training_sources, warmup_examples
from trainer.data.mixture import item_order
from trainer.data.model import load_model, resolve_model_dir
from trainer.learning.batch import Sample
from trainer.learning.warmup import warm_up
from trainer.recipe import build_learner, policy_scorer, warmup_settings

RECIPE = Path(__file__).parents[1] / "examples" / "spelling.yaml"

NUM_SLOTS = 256
"""Requests that decode at the same time. They are many, because no other process of the run needs the cores. Chosen by
hand."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Models and data that the phases share."""

    job: JobFile
    dataset: Dataset
    tokenizer: Any
    actor: Any
    engine: TorchEngine

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        return PromptEncoder(tokenizer=self.tokenizer).encode(self.dataset.environment.item(index))

    def requests(self, indices: Sequence[int], first_group: int, num_samples: int, greedy: bool) -> list[SampleRequest]:
        return [
            SampleRequest(
                request_id=f"{first_group + offset}.{sample}",
                prompt_ids=prompt_ids,
                seed=self.job.seed,
                group=first_group + offset,
                sample=sample,
                temperature=self.job.sampling.temperature,
                max_new_tokens=self.job.sampling.max_new_tokens,
                greedy=greedy,
            )
            for offset, prompt_ids in enumerate(map(self.prompt_ids, indices))
            for sample in range(num_samples)
        ]

    def score(self, index: int, completion: Completion) -> float:
        text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        return self.dataset.environment.score(index, text)


def open_run(job: JobFile, cache: Path) -> Run:
    """Build the models, the environment and its splits."""
    directory = resolve_model_dir(job.model.path, cache, job.seed)
    actor, tokenizer = load_model(directory)
    sampler, _ = load_model(directory)
    engine = TorchEngine(
        model=sampler,
        end_ids=(tokenizer.eos_token_id,),
        pad_id=tokenizer.pad_token_id,
        num_slots=NUM_SLOTS,
        prompt_tokens=job.sampling.prompt_tokens,
        max_new_tokens=job.sampling.max_new_tokens,
    )
    environment = trainer_environment(job).environment
    splits = split_prompts(read_prompts(environment, job, PromptEncoder(tokenizer=tokenizer)), job)
    dataset = Dataset(environment=environment, splits=splits)
    return Run(job=job, dataset=dataset, tokenizer=tokenizer, actor=actor, engine=engine)


def warm(run: Run) -> tuple[int, float]:
    """Run the warm-up. Return its number of steps and its last loss."""
    settings = warmup_settings(run.job, run.actor)
    examples = warmup_examples(run.dataset, PromptEncoder(tokenizer=run.tokenizer))
    step, loss = 0, float("nan")
    for progress in warm_up(policy_scorer(run.job, run.actor), examples, settings):
        step, loss = progress.step, progress.loss
    return step, loss


def publish(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights rounded to bf16, as they are published."""
    return {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}


def install(engine: TorchEngine, weights: Mapping[str, torch.Tensor], version: int) -> None:
    """Write published weights into the engine, and sample as `version` from now on."""
    state = {
        name: Tensor("BF16", tuple(each.shape), each.contiguous().view(-1).view(torch.uint8).numpy())
        for name, each in weights.items()
    }
    change = WholeState(layout=layout_of(state), state=state)
    asyncio.run(engine.swap(change, Policy(0, version), OnSwap.KEEP_KV))


def generate(engine: TorchEngine, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Return the completions of all requests, in order."""

    async def submit_all() -> list[Completion]:
        return await asyncio.gather(*map(engine.submit, requests))

    return asyncio.run(submit_all())


def accuracy(run: Run) -> float:
    """Return the share of exact answers on the held-out prompts, decoded greedily with the published weights."""
    install(run.engine, publish(run.actor), 0)
    held_out = run.dataset.splits.held_out
    completions = generate(run.engine, run.requests(held_out, 0, 1, greedy=True))
    scores = [run.score(index, completion) for index, completion in zip(held_out, completions, strict=True)]
    return sum(score == EXACT for score in scores) / len(scores)


def rollout(run: Run, indices: Sequence[int], step: int) -> list[Sample]:
    """Return one batch of scored samples from the weights that the engine has now."""
    first_group = step * run.job.train.groups_per_step
    requests = run.requests(indices, first_group, run.job.algorithm.group_size, greedy=False)
    completions = generate(run.engine, requests)
    return [
        Sample(
            group=request.group,
            sample=request.sample,
            prompt_ids=np.asarray(request.prompt_ids, np.int32),
            completion_ids=np.asarray(completion.token_ids, np.int32),
            behaviour_logprobs=np.asarray(completion.logprobs, np.float32),
            mask=np.ones(len(completion.token_ids), np.bool_),
            policies=completion.runs,
            reward=run.score(indices[request.group - first_group], completion),
            stop_reason=StopReason(completion.end.value),
        )
        for request, completion in zip(requests, completions, strict=True)
    ]


def reinforce(run: Run, control: bool, verbose: bool) -> dict[str, Any]:
    """Run the reinforcement phase. Return its CPU seconds by part, and the number of tokens trained on."""
    job = run.job
    size, staleness = job.train.groups_per_step, job.staleness
    item_of = item_order(training_sources(run.dataset, job), job.seed)
    learner = build_learner(job, run.actor)
    published = deque([publish(run.actor)], maxlen=staleness + 1)
    seconds = {"rollout_s": 0.0, "train_s": 0.0}
    tokens = 0
    for step in range(job.steps):
        begin = time.process_time()
        install(run.engine, published[0], max(0, step - staleness))
        indices = [item_of(group) for group in range(step * size, (step + 1) * size)]
        samples = rollout(run, indices, step)
        middle = time.process_time()
        rewards = np.asarray([sample.reward for sample in samples])
        mean_reward, exact = rewards.mean(), (rewards == EXACT).mean()
        if control:
            permuted = np.random.default_rng((job.seed, step)).permutation(rewards)
            samples = [replace(sample, reward=float(reward)) for sample, reward in zip(samples, permuted, strict=True)]
        report = learner.step(samples, consumer=Policy(0, step), learning_rate=job.learning_rate(step))
        assert report is not None
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


def measure(job: JobFile, control: bool, verbose: bool) -> dict[str, Any]:
    """Run the whole recipe once, and return the record."""
    times = [time.process_time()]
    with tempfile.TemporaryDirectory() as cache:
        run = open_run(job, Path(cache))
    times.append(time.process_time())
    warmup_steps, warmup_loss = warm(run)
    times.append(time.process_time())
    before = accuracy(run)
    times.append(time.process_time())
    if verbose:
        print("before", before, warmup_steps, warmup_loss, file=sys.stderr)
    phases = reinforce(run, control, verbose)
    after = accuracy(run)
    asyncio.run(run.engine.close())
    times.append(time.process_time())
    return {
        "bench": "learning",
        "seed": job.seed,
        "staleness": job.staleness,
        "control": control,
        "accuracy_before": before,
        "accuracy_after": after,
        "warmup_steps": warmup_steps,
        "warmup_loss": round(warmup_loss, 3),
        "warmup_examples": min(
            warmup_steps * warmup_settings(job, run.actor).batch_rows, len(run.dataset.splits.warmup)
        ),
        "open_s": round(times[1] - times[0], 2),
        "warmup_s": round(times[2] - times[1], 2),
        "eval_s": round(times[3] - times[2], 2),
        "cpu_s": round(times[4] - times[0], 2),
        **{name: round(value, 2) for name, value in phases.items()},
    }


def main() -> int:
    """Run the benchmark once and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="job overrides, dotted keys")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    overrides = (*arguments.set, f"seed={arguments.seed}", f"staleness={arguments.staleness}")
    job = load_job(RECIPE, overrides)
    result = measure(job, arguments.control, arguments.verbose)
    print(json.dumps({**result, "overrides": arguments.set}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
