"""Reward functions that need nothing but a completion, its problem and their settings.

Workers score samples with them in processes of their own (`rollout_worker/rewards/`), and the trainer computes some of
the rewards again with the same ones (`trainer/checks/reward_checks.py`).
"""

from types import MappingProxyType

NAMED = MappingProxyType(
    {
        kind: f"{__name__}.{module}"
        for kind, module in {
            "math": "mathematics",
            "exact": "exact",
            "regex": "regex",
            "format": "form",
            "length": "length",
        }.items()
    }
)
"""The module of each kind of function by the kind; its `build` returns the function for an entry's settings."""
