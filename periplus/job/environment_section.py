"""The section `environment` of a job file: what makes the problems, or answers the model turn by turn."""

from typing import Annotated

from pydantic import Field, JsonValue

from periplus.config.loading import Config, Words

TURN_ENVIRONMENTS = ("calculator", "number_game")
"""Names of the runtime's own environments of several turns. A test checks that each of them can be built."""

MAX_TURNS = 64
"""Largest number of turns of an episode. Each turn's reward is recorded by name in the sample's metadata, which has 64
KiB. Chosen by hand."""


class EnvironmentSection(Config):
    """What makes the problems and scores the completions, or answers the model in an episode of several turns."""

    name: str | None = Field(default=None, min_length=1)
    """Name of a reasoning-gym data set, such as chain_sum, or of an environment of several turns: calculator or
    number_game. It makes the problems."""

    path: Annotated[str, Words("MODULE:CLASS, such as my_env:Game")] | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=256
    )
    """Import path of an environment of the user's own, such as my_env:Game, whose class has the methods `reset` and
    `step` (docs/environments.md). The problems come from `data`."""

    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the data set or environment, passed to it unchanged, by name. `seed` and `size` are not allowed with
    `name`: the job's own keys `seed` and `data.size` set them."""

    max_turns: int = Field(default=8, ge=1, le=MAX_TURNS)
    """Largest number of turns of the model in one episode. For environments of several turns; the tokens of all turns
    and answers together are at most sampling.max_new_tokens."""

    timeout_s: float = Field(default=10.0, ge=0.1, le=3600)
    """Seconds that an environment of the user's own may take for one call of `reset` or `step`. Then its process is
    killed, and the episode has failed."""

    processes: int = Field(default=64, ge=1, le=1024)
    """Largest number of processes in which each worker runs an environment of the user's own. Each has one episode at a
    time, and is started when it is needed."""

    code: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = Field(default=(), max_length=64)
    """Files and folders of Python code that travel with the job, for an environment that is given by path. Default: its
    module, beside the job file or where the command runs."""

    code_digests: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """BLAKE3 digest of each file of `code`, by the path under which it travels. Filled in where the job is submitted; a
    trainer refuses other files."""

    @property
    def has_turns(self) -> bool:
        """Whether an episode may have several turns."""
        return self.path is not None or self.name in TURN_ENVIRONMENTS

    @property
    def has_own_code(self) -> bool:
        """Whether the user's own code runs on workers."""
        return self.path is not None

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The top-level modules of the user's own environment."""
        return () if self.path is None else (self.path.partition(":")[0].partition(".")[0],)


def makes_problems(section: EnvironmentSection | None) -> bool:
    """Return whether the problems come from the environment and not from a data set."""
    return section is not None and section.name is not None


def environment_disagreements(section: EnvironmentSection, *, scores_alone: bool) -> list[str]:
    """Return what keys of the section contradict each other, one sentence each.

    `scores_alone`: no reward function of the job scores samples beside the environment.
    """
    refusals = []
    if (section.name is None) == (section.path is None):
        what = "neither is" if section.name is None else "both are"
        refusals.append(f"exactly one of environment.name and environment.path must be given, but {what}")
    if section.has_turns and not scores_alone:
        refusals.append(
            "environment has several turns, whose rewards it gives itself, but reward names other functions; set "
            "reward: verifier, and have the environment call what else is to be scored"
        )
    fields = EnvironmentSection.model_fields
    of_turns, of_path = ("max_turns",), ("timeout_s", "processes", "code", "code_digests")
    for key, applies, where in (
        *((key, section.has_turns, "an environment of several turns") for key in of_turns),
        *((key, section.path is not None, "environment.path") for key in of_path),
    ):
        if not applies and getattr(section, key) != fields[key].get_default(call_default_factory=True):
            refusals.append(f"environment.{key} is set, but it is only for {where}; leave it out")
    return refusals
