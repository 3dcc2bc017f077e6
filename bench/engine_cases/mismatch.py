"""Compares an engine's log-probabilities of what it sampled with the trainer's, token by token.

The engine held the weights rounded to bfloat16, as they are published; the trainer has the float32 masters. So the
difference contains the rounding of the weights, that of the engine's own computation, and that of the trainer's. The
trainer's scoring is also repeated in float32 with rounded weights, which leaves the engine's computation alone. The
limits that a job would apply are beside them: that of the probe of the engine's first check, in nats, and the trainer's
own rounding of the same tokens, in whose units samples are checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bench.engine_cases.models import PROBE_SEED
from periplus.values.policy import Policy
from periplus.values.probe_prompts import PROBE_LIMITS_BF16, probe_difference, probe_prompts
from periplus.values.trajectory import PolicyRun, StopReason
from trainer.learning.batch import Sample, collate
from trainer.learning.forward.precision import compute_dtype, has_bfloat16_units
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.publishing.reference_logprobs import logprobs, relative_rounding


def compared(model: Any, sampled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences by how the trainer scores: as a job does by default, in float32, and with rounded weights.

    `model` holds the float32 masters, on the device that scores; they are rounded in the end. KL is the mean of the k3
    estimate of the engine's distribution against the trainer's, in nats a token.
    """
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    device = next(model.parameters()).device
    default = compute_dtype(
        "auto",
        device=device,
        num_parameters=num_parameters,
        has_bfloat16_units=has_bfloat16_units(device),
    )
    found: dict[str, Any] = {
        "trainer": _differences(PolicyScorer(model, compute_dtype=default), sampled),
        "float32": _differences(PolicyScorer(model), sampled),
    }
    if "probe" in sampled:
        found["probe"] = _probe(model, sampled["probe"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    found["float32 of rounded weights"] = _differences(PolicyScorer(model), sampled)
    return {"trainer_dtype": str(default), "tokens": sum(map(len, sampled["tokens"])), **found}


def _probe(model: Any, of_engine: Sequence[float]) -> dict[str, float]:
    prompts = probe_prompts(PROBE_SEED, model.config.vocab_size)
    difference = probe_difference(logprobs(model, prompts).reshape(-1).tolist(), of_engine)
    rounding = relative_rounding(model, prompts)
    limit_nats = PROBE_LIMITS_BF16.of(None, difference.spread, rounding)
    return {"mean_nats": difference.mean, "own_rounding_nats": rounding * difference.spread, "limit_nats": limit_nats}


@torch.no_grad()
def _differences(scorer: PolicyScorer, sampled: Mapping[str, Any]) -> dict[str, float]:
    samples = [
        Sample(
            group=index // 8,
            sample=index % 8,
            prompt_ids=np.asarray(prompt, np.int32),
            completion_ids=np.asarray(tokens, np.int32),
            behaviour_logprobs=np.asarray(logprobs, np.float32),
            mask=np.ones(len(tokens), np.bool_),
            policies=(PolicyRun(Policy(0, 0), len(tokens)),),
            reward=0.0,
            stop_reason=StopReason.LENGTH,
        )
        for index, (prompt, tokens, logprobs) in enumerate(
            zip(sampled["prompts"], sampled["tokens"], sampled["logprobs"], strict=True)
        )
    ]
    batch = collate(samples, scorer.device)
    trainer = completion_logprobs(scorer, batch, 1.0)[batch.mask_BT].double()
    engine = batch.behaviour_logprobs_BT[batch.mask_BT].double()
    # k3 of KL(engine || trainer): tokens were drawn by the engine.
    log_ratio = trainer - engine
    return {
        "mean_nats": float(log_ratio.abs().mean()),
        "max_nats": float(log_ratio.abs().max()),
        "kl": float((log_ratio.exp() - 1 - log_ratio).mean()),
    }
