"""The section `reward` of a job file: how a sample is scored."""

from typing import Literal

from periplus.config.loading import Config


class RewardSection(Config):
    """How a sample is scored."""

    name: Literal["verifier", "shuffled"] = "verifier"
    """`verifier` compares the completion with the problem's answer and gives 0 to 1. `shuffled` permutes the rewards of
    a batch at random among its samples; it is a control run, in which nothing can be learnt."""
