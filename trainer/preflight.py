"""Checks of a job's inputs before any weight is read: model, data and environment fit each other and the job.

`checked_inputs` is called by the trainer when it starts, and by the command that submits a job, so that both refuse the
same things in the same words. The command runs it as a child process, `python -m trainer.preflight`. The child reads a
job as JSON from standard input and writes one JSON object to standard output: either an error (`reason`, `message`) or
the numbers of prompts that were checked and of problems that there are (`prompts`, `problems`), how many of those are
left out and why (`counts`, `is_mostly_left_out`), and what a dry run shows of them.

It is a process of its own for two reasons. The control plane imports no tokenizer, and an environment with hostile
settings may take any time and any memory. Torch and transformers take seconds to import, so they are loaded only for a
model that is a directory.
"""

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from periplus import clock, errors
from periplus.environment.job_environment import TrainerEnvironment, prompt_encoder, trainer_environment
from periplus.environment.prompts import PromptEncoder
from periplus.errors import PeriplusError
from periplus.job.data_section import makes_problems
from periplus.job.inputs import adapter_base, check_inputs, model_folder, reference_folder
from periplus.job.job_file import BUILTIN_PREFIX, JobFile
from periplus.job.model_section import NO_TEMPLATE
from periplus.job.samples.correctness import correctness_of
from trainer.data.characters import EOS, character_tokenizer
from trainer.data.dataset import Prompt, check_set_prompts, counted, excluded_by_sets, read_prompts, split_prompts
from trainer.tracking.packages import check_trackers

BUDGET_S = 5.0
"""Processor seconds after which the child process makes and encodes no further prompt. Chosen by hand: the 12,000
prompts of the demo take 0.3 s, but some tasks of reasoning-gym need 10 ms and more for each problem. The trainer reads
all of them when it starts."""

LIMIT_S = 20
"""Processor seconds after which the kernel ends the child process (SIGXCPU), since one problem of an environment with
hostile settings may take hours inside one call. Chosen by hand: importing torch and transformers takes 4 s, and
BUDGET_S comes on top."""


MAX_SHOWN_CHARACTERS = 4000
"""Characters of the first prompt that a dry run shows at most. Chosen by hand: two pages."""

MAX_SHOWN_END = 64
"""Characters of what ends a turn that a warning shows at most. Chosen by hand."""

MAX_SHOWN_TOKENS = 256
"""Tokens of the first prompt that a dry run shows at most. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a job trains on: tokenizer, environment and prompts, before the problems are split into sets.

    `prompts` may be only the first ones, if time was up.
    """

    encoder: PromptEncoder
    problems: TrainerEnvironment
    prompts: list[Prompt]


class CharacterTokenizer:
    """The tokenizer of the built-in models, with the call signature of a transformers tokenizer."""

    def __init__(self) -> None:
        self._inner: Tokenizer = character_tokenizer()

        self.eos_token_id = self._inner.token_to_id(EOS)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self._inner.encode(text, add_special_tokens=add_special_tokens).ids}


def checked_inputs(job: JobFile, model_dir: Path | None, is_time_up: Callable[[], bool] = lambda: False) -> Inputs:
    """Check model, data and environment against each other and against the job, and that its trackers are installed.

    `model_dir` is None for a built-in model that has not been made yet. Once `is_time_up` returns true, no further
    prompt is made and checked. Raises: ConfigError.
    """
    check_trackers(job.output.trackers)
    check_inputs(job)
    tokenizer: Any
    if model_dir is None and job.model.chat_template in (None, NO_TEMPLATE):
        tokenizer = CharacterTokenizer()
    elif model_dir is None:
        from trainer.data.model import build_tokenizer  # transformers, which applies templates

        tokenizer = build_tokenizer()
    else:
        from trainer.data.pretrained import check_checkpoint, check_reference, load_tokenizer

        model_dir = adapter_base(model_dir) or model_dir
        check_checkpoint(model_dir, () if job.model.lora is None else job.model.lora.target_modules)
        tokenizer = load_tokenizer(model_dir)
        if (reference := reference_folder(job)) is not None:
            check_reference(reference, model_dir)
    if job.learning_rate(0) is None:
        from trainer.recipe import learning_rate_of  # transformers, which has the schedule

        learning_rate_of(job, 0)
    encoder, problems = prompt_encoder(job, tokenizer, model_dir), trainer_environment(job)
    check_set_prompts(problems, job, encoder)
    prompts = read_prompts(problems.environment, job, encoder, is_time_up)
    return Inputs(encoder=encoder, problems=problems, prompts=prompts)


def answer(job_json: str) -> dict[str, Any]:
    """Return the JSON object that the child process prints, for a job given as JSON."""
    try:
        job = JobFile.from_json(job_json)
        model_dir = None if job.model.path.startswith(BUILTIN_PREFIX) else model_folder(job)
        started_s = clock.process_s()
        inputs = checked_inputs(job, model_dir, lambda: clock.process_s() - started_s > BUDGET_S)
        # Sets can be divided only if all prompts were read; otherwise the trainer finds out.
        if len(inputs.prompts) == len(inputs.problems.environment):
            split_prompts(inputs.prompts, job, excluded_by_sets(inputs.problems))
        counts = counted(inputs.prompts, inputs.problems, job)
        return {
            "remarks": framing_remarks(job, inputs.encoder),
            "correct": correctness_of(job).description,
            "prompts": len(inputs.prompts),
            "problems": len(inputs.problems.environment),
            "counts": counts.sentence(job.sampling.prompt_tokens),
            # An environment that makes its problems repeats some by its nature.
            "is_mostly_left_out": counts.is_mostly_left_out and not makes_problems(job.environment),
            **_shown(inputs),
        }
    except PeriplusError as error:
        return {"reason": errors.reason(error), "message": str(error)}


def framing_remarks(job: JobFile, encoder: PromptEncoder) -> tuple[str, ...]:
    """Return a warning if the chat template ends a turn of the model with what does not end a completion."""
    (token, text), decoder = encoder.turn_end, encoder.decoder
    if not text or token in decoder.ends or any(stop in text for stop in job.sampling.stop):
        return ()
    said = (text if token is None else decoder.token_text(token))[:MAX_SHOWN_END]
    ends = ", ".join(map(decoder.token_text, sorted(decoder.ends)))
    return (
        f"the chat template ends a turn of the model with {said!r}, which is none of its end tokens ({ends}): "
        f"completions that end like this go on to sampling.max_new_tokens; set sampling.stop=[{json.dumps(said)}], or "
        "name the token as eos_token_id in the model's generation_config.json",
    )


def _shown(inputs: Inputs) -> dict[str, Any]:
    """Return what a dry run shows: which data was read, how prompts are framed, and the first one."""
    encoder, first = inputs.encoder, inputs.problems.first
    return {
        "read": list(inputs.problems.read),
        "framing": encoder.description,
        "first_prompt": encoder.text(first)[:MAX_SHOWN_CHARACTERS],
        "first_tokens": list(encoder.encode(first))[:MAX_SHOWN_TOKENS],
        "first_answer": first.answer[:MAX_SHOWN_CHARACTERS],
    }


def main() -> None:
    """Read a job from standard input and print the answer, within LIMIT_S seconds of processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
    sys.stdout.write(json.dumps(answer(sys.stdin.read())) + "\n")


if __name__ == "__main__":
    main()
