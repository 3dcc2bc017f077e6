"""How the tokens of a job's completions are drawn, from the job's settings and a decoder for its stop strings."""

import copy

from periplus.environment.completions import CompletionDecoder
from periplus.job.job_file import SamplingSection
from periplus.job.sampling_section import EvalSampling
from rollout_worker.engines.stop_strings import StopStrings
from rollout_worker.episodes.episode import DrawSettings


def training_draws(sampling: SamplingSection, decoder: CompletionDecoder) -> DrawSettings:
    """Return how completions are drawn that are trained on."""
    return DrawSettings(
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        stop=_strings(decoder, sampling.stop, 0),
    )


def evaluation_draws(sampling: SamplingSection, evaluation: EvalSampling, decoder: CompletionDecoder) -> DrawSettings:
    """Return how the completions of an evaluation are drawn; what it leaves open is as in training."""
    stop = sampling.stop if evaluation.stop is None else evaluation.stop
    return DrawSettings(
        temperature=evaluation.temperature,
        max_new_tokens=evaluation.max_new_tokens or sampling.max_new_tokens,
        top_p=evaluation.top_p,
        top_k=evaluation.top_k,
        min_new_tokens=evaluation.min_new_tokens,
        stop=_strings(decoder, stop, evaluation.min_new_tokens),
    )


def _strings(decoder: CompletionDecoder, texts: tuple[str, ...], min_new_tokens: int) -> StopStrings | None:
    # Engines decode in a thread of their own, and a tokenizer is not promised to serve two threads.
    return StopStrings(copy.deepcopy(decoder), texts, min_new_tokens) if texts else None
