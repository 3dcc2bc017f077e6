"""Finds an environment of several turns by its name."""

from collections.abc import Mapping
from typing import Any

from periplus.environment.turns import calculator, number_game
from periplus.environment.turns.protocol import TurnTasks


def load_turn_tasks(name: str, config: Mapping[str, Any], *, seed: int, size: int) -> TurnTasks:
    """Return the problems of an environment with their episodes. Raises: ConfigError for settings that it lacks."""
    match name:
        case "calculator":
            return calculator.load(config, seed=seed, size=size)
        case "number_game":
            return number_game.load(config, seed=seed, size=size)
    raise ValueError(f"no environment of several turns is named {name}")
