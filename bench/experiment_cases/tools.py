"""Claim: slow tools overlap. `episodes_64_tools_s`: 64 episodes, each with a tool call of 1 s, take at most 5 s.

The tool is a user's own environment that sleeps, in processes of its own, and a real engine with a small random model
generates the turns. Wall time is from the first lease's begin to the last episode's end, processes' start included. It
is checked first that each episode has two turns, with the tool's tokens between them and masked.
"""

import tempfile
import time
from pathlib import Path

from bench.experiment_cases.case import CaseResult, Figure
from bench.experiment_cases.episodes import play_episodes
from rollout_worker.environments.pool import EnvironmentPool, EnvironmentProgram

NUM_EPISODES = 64
TOOL_S = 1.0
MOST_S = 5.0
"""Target: most wall seconds."""

TOOL = """
import time

class Tool:
    def reset(self, item): self.calls = 0
    def step(self, completion):
        self.calls += 1
        if self.calls == 2: return None, 1.0, True
        time.sleep(TOOL_S)
        return "4321", 0.0, False
"""
"""The tool of the user's own: one call that sleeps, then the answer's judgement."""


def measure(*, quick: bool) -> CaseResult:
    """Play the episodes and measure how long they take. `quick` plays as many: they take seconds."""
    del quick
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "slow_tool.py").write_text(TOOL.replace("TOOL_S", str(TOOL_S)))
        program = EnvironmentProgram(path="slow_tool:Tool", config={}, folder=Path(folder))
        pool = EnvironmentPool(program, max_processes=NUM_EPISODES, timeout_s=10 * TOOL_S)
        began_s = time.monotonic()
        played = play_episodes(pool, NUM_EPISODES, run=pool.run)
        took_s = time.monotonic() - began_s
    for each in played:
        assert each.turn_rewards == (0.0, 1.0), f"an episode has the rewards {each.turn_rewards}"
        assert each.mask.count(False) == len("4321"), "the tool's tokens are not masked"
    figure = Figure(name="episodes_64_tools_s", value=took_s, unit="s", op="<=", target=MOST_S)
    config = {"episodes": NUM_EPISODES, "tool_s": TOOL_S, "processes": NUM_EPISODES}
    return CaseResult(figures=(figure,), config=config)
