"""Measures training steps and publications on an accelerator, with random weights of a real shape.

For one shape it records
- seconds of a training step, tokens a second and peak memory;
- what of the weights changes in a step at a learning rate of 1e-6, and the bits of each change on the wire;
- seconds of a snapshot, for which training waits, and of encoding, which goes on beside the next step: the step is
  timed with and without it.

`--device cpu --shape tiny` tries the program without an accelerator. The last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.engine_cases.accelerator.record import device_of, now_s, parser_of, print_record
from bench.engine_cases.accelerator.shapes import random_model
from periplus.codec.weights.encoder import Encoder
from periplus.job.job_file import JobFile, resolve
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, StopReason
from trainer.learning.batch import Sample
from trainer.publishing.trained_weights import weights_of
from trainer.recipe import build_learner


def main() -> int:
    """Run the measurement and print its JSON line."""
    parser = parser_of("training", __doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed, after two that are not")
    arguments = parser.parse_args()
    device = device_of(arguments)
    print_record("training", arguments, device, measured(arguments, device))
    return 0


def measured(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the figures of one shape."""
    model = random_model(arguments.shape, device, torch.float32)
    learner = learner_of(arguments, model)
    rng = np.random.default_rng(0)
    version = 0

    def step() -> float:
        nonlocal version
        samples = random_samples(arguments, int(model.config.vocab_size), rng)
        started_s = now_s(device)
        assert learner.step(samples, consumer=Policy(0, version), learning_rate=1e-6) is not None
        version += 1
        return now_s(device) - started_s

    for _ in range(2):  # moments of the optimizer, kernels, memory
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step_s = [step() for _ in range(arguments.steps)]
    tokens = arguments.samples * (arguments.prompt_tokens + arguments.new_tokens)
    found: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "step_s": statistics.median(step_s),
        "tokens_per_s": tokens / statistics.median(step_s),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }
    return found | publications(model, step, device, arguments.steps)


def learner_of(arguments: argparse.Namespace, model: Any) -> Any:
    """Return a learner of the model, for samples of `prompt_tokens` and `new_tokens`, at a learning rate of 1e-6."""
    job = resolve(
        JobFile.model_validate_json(
            json.dumps(
                {
                    "name": "gpu-training",
                    "environment": {"name": "spell_backward"},
                    "sampling": {"prompt_tokens": arguments.prompt_tokens, "max_new_tokens": arguments.new_tokens},
                    "optimizer": {"lr": 1e-6},
                }
            )
        )
    )
    return build_learner(job, model)


def publications(model: Any, step: Callable[[], float], device: torch.device, num: int) -> dict[str, Any]:
    """Publish after each of `num` steps, with the encoder beside the next step, and return what it cost."""
    weights = weights_of(model)
    base = weights.first()
    snapshot_s, encode_s, beside_s, density, bits = [], [], [], [], []
    for _ in range(num):
        step()
        started_s = now_s(device)
        complete = weights.take()
        snapshot_s.append(now_s(device) - started_s)
        # In a thread, as the publisher does: the state is completed on the host and encoded.
        done: list[tuple[Any, Encoder, float]] = []

        def encode(base: Any = base, complete: Any = complete, done: list[Any] = done) -> None:
            began_s = time.perf_counter()
            taken = complete(base)
            encoder = Encoder(base, taken.state, num_threads=4, changes=taken.changes)
            for _part in encoder.parts():
                pass
            done.append((taken.state, encoder, time.perf_counter() - began_s))

        thread = threading.Thread(target=encode)
        thread.start()
        beside_s.append(step())
        thread.join()
        base, encoder, spent_s = done[0]
        encode_s.append(spent_s)
        stats = encoder.stats
        density.append(stats.num_changed / stats.num_elements)
        bits.append(8 * stats.payload_bytes / max(1, stats.num_changed))
    return {
        "snapshot_s": statistics.median(snapshot_s),
        "encode_s": statistics.median(encode_s),
        "step_beside_encoding_s": statistics.median(beside_s),
        "changed_share": statistics.median(density),
        "bits_per_change": statistics.median(bits),
    }


def random_samples(arguments: argparse.Namespace, vocabulary: int, rng: np.random.Generator) -> list[Sample]:
    """Return samples of full length in groups of 8, with random tokens and rewards."""

    def ids(num: int) -> Any:
        return rng.integers(3, vocabulary, num).astype(np.int32)

    prompts = {group: ids(arguments.prompt_tokens) for group in range((arguments.samples + 7) // 8)}
    return [
        Sample(
            group=index // 8,
            sample=index % 8,
            prompt_ids=prompts[index // 8],
            completion_ids=ids(arguments.new_tokens),
            # What a random model gives to a random token, so that ratios are near 1.
            behaviour_logprobs=np.full(arguments.new_tokens, -np.log(vocabulary), np.float32),
            mask=np.ones(arguments.new_tokens, np.bool_),
            policies=(PolicyRun(Policy(0, 0), arguments.new_tokens),),
            reward=float(rng.integers(2)),
            stop_reason=StopReason.LENGTH,
        )
        for index in range(arguments.samples)
    ]


if __name__ == "__main__":
    sys.exit(main())
