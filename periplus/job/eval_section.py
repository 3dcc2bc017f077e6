"""The section `eval` of a job file: what is measured on held-out problems and on named sets, and how often."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from periplus.config.loading import Config
from periplus.job.data_section import DatasetKeys, EnvironmentSection, source_disagreements
from periplus.job.sampling_section import EvalSampling, eval_sampling_disagreements
from periplus.job.train_section import MAX_COUNT

MAX_SETS = 16
"""Largest number of evaluation sets. Chosen by hand: a report draws a line for each."""

MAX_SET_SAMPLES = 1_000_000
"""Largest number of samples of one evaluation set. The journal names each of them in one line. Chosen by hand."""

DEFAULT_SET_PROMPTS = 256
"""Problems that an environment makes for a set, unless the job says how many. Chosen by hand: the 95 % interval of an
accuracy is then at most 0.12 wide."""

HELD_OUT = "held-out"
"""The name under which samples of the held-out problems are shown beside those of sets."""

SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class EvalSet(Config):
    """A named evaluation set: problems of its own, and how many completions of each are sampled, and how. Without
    `data` and `environment` it has the job's held-out problems."""

    data: DatasetKeys | None = None
    """A data set, with the keys of `data`. Its `split` is often `test`."""

    environment: EnvironmentSection | None = None
    """A task of reasoning-gym that makes the problems, from another seed than those for training."""

    num_prompts: int | None = Field(default=None, ge=1, le=MAX_SET_SAMPLES)
    """Number of problems, taken from the start. null takes all; an environment then makes 256."""

    samples: int = Field(default=1, ge=1, le=1024)
    """Number of completions that are sampled for each problem."""

    k: int | None = Field(default=None, ge=1, le=1024)
    """Pass@k is measured for this k, at most `samples`; null means `samples`."""

    sampling: EvalSampling = EvalSampling()
    """How completions are sampled. Several samples of a problem need a temperature above 0."""

    every_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Evaluate after every so many steps, while training goes on. With 0 only before the first and after the last
    step."""

    @property
    def pass_k(self) -> int:
        """The k of pass@k."""
        return self.samples if self.k is None else self.k


class EvalSection(Config):
    """Evaluation: accuracy of completions on held-out problems, and of named sets."""

    num_prompts: int = Field(default=512, ge=1, le=1_000_000)
    """Number of held-out problems. They are disjoint from those of the warm-up and of training."""

    every_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Evaluate after every so many steps, while training goes on. With 0 only before the first and after the last
    step."""

    sampling: EvalSampling = EvalSampling()
    """How the completions of the held-out problems are sampled, one for each problem."""

    sets: Mapping[SetName, EvalSet] = Field(default_factory=dict, max_length=MAX_SETS)
    """Further evaluation sets by name: up to 32 lower-case letters, digits, hyphens and underscores. Problems of a set
    are neither trained on nor held out."""


def eval_disagreements(section: EvalSection, *, max_new_tokens: int, plays_episodes: bool) -> list[str]:
    """Return what is wrong with the section, beside what each key's own bounds say; empty if nothing is.

    `plays_episodes`: the job's environment has several turns.
    """
    refusals = eval_sampling_disagreements(section.sampling, "eval.sampling", max_new_tokens=max_new_tokens)
    if HELD_OUT in section.sets:
        refusals.append(
            f"eval.sets has a set named {HELD_OUT}, as the held-out problems are called; choose another name"
        )
    for name, each in section.sets.items():
        key = f"eval.sets.{name}"
        if each.data is not None and each.environment is not None:
            refusals.append(f"{key} has both data and environment; give one of them, or none for held-out problems")
        if each.data is not None:
            refusals += [f"{key}.data has no path; give one"] if each.data.path is None else []
            refusals += source_disagreements(each.data)
        if each.environment is not None and (each.environment.name is None or each.environment.has_turns):
            refusals.append(f"{key}.environment must be a task of reasoning-gym, given by its name; change it")
        if plays_episodes and (each.data is not None or each.environment is not None):
            refusals.append(
                f"{key} has problems of its own, but the job's environment has several turns, and plays the job's own "
                f"problems alone; remove {key}.data and {key}.environment"
            )
        if each.pass_k > each.samples:
            refusals.append(f"{key}.k is {each.k}, but only {each.samples} samples are drawn; raise {key}.samples")
        if each.samples > 1 and each.sampling.temperature == 0:
            refusals.append(
                f"{key}.samples is {each.samples}, but {key}.sampling.temperature is 0, so that all samples of a "
                f"problem would be equal; give a temperature above 0, or set {key}.samples=1"
            )
        if each.num_prompts is not None and each.num_prompts * each.samples > MAX_SET_SAMPLES:
            refusals.append(
                f"{key} has {each.num_prompts} x {each.samples} samples; at most {MAX_SET_SAMPLES} can be recorded"
            )
        if (
            each.data is None
            and each.environment is None
            and each.num_prompts is not None
            and each.num_prompts > section.num_prompts
        ):
            refusals.append(
                f"{key}.num_prompts is {each.num_prompts}, but only {section.num_prompts} problems are held out; raise "
                "eval.num_prompts"
            )
        refusals += eval_sampling_disagreements(each.sampling, f"{key}.sampling", max_new_tokens=max_new_tokens)
    return refusals
