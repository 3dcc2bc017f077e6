"""The section `eval` of a job file: what is measured on held-out problems, and how often."""

from pydantic import Field

from periplus.config.loading import Config
from periplus.job.bounds import MAX_COUNT
from periplus.job.sampling_section import EvalSampling


class EvalSection(Config):
    """Evaluation: accuracy of completions on held-out problems."""

    num_prompts: int = Field(default=512, ge=1, le=1_000_000)
    """Number of held-out problems. They are disjoint from those of the warm-up and of training."""

    every_steps: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Evaluate after every so many steps. With 0 only before the first and after the last step."""

    sampling: EvalSampling = EvalSampling()
    """How the completions of an evaluation are sampled."""
