"""What the fleets and workloads of both published planners take that nobody published, each by its name."""

from bench.planner_cases.fleets.published import HetrlScenario, areal_hex_fleet, hetrl_fleet
from bench.planner_cases.fleets.published_workloads import (
    AREAL_HEX_MODELS,
    HETRL_MODELS,
    areal_hex_workload,
    hetrl_workload,
)
from bench.planner_cases.report.markdown import bullets


def guesses() -> list[str]:
    """Return the lines of the record on guesses, as `bench.planner_cases.fleets` names them."""
    networks = {str(scenario): hetrl_fleet(scenario).guesses for scenario in HetrlScenario}
    common = [guess for guess in next(iter(networks.values())) if all(guess in found for found in networks.values())]
    lines = [f"all networks: {guess}" for guess in common]
    for name, found in networks.items():
        lines += [f"{name}: {guess}" for guess in found if guess not in common]
    jobs = hetrl_workload(HETRL_MODELS[0], "grpo", is_async=True).guesses
    hexes = areal_hex_fleet(num_h800_machines=1, num_h20_machines=1).guesses
    work = areal_hex_workload(AREAL_HEX_MODELS[0]).guesses
    return [
        "HetRL's fleets:",
        bullets(lines),
        "HetRL's workloads:",
        bullets(jobs),
        "AReaL-Hex's fleet and workload; the benchmark gives the bound of each case itself:",
        bullets([*hexes, *work]),
    ]
