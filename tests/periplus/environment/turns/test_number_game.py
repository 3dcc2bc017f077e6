"""The number game: legal moves, both ends, and an opponent that is the same for all samples of a problem."""

import asyncio

from periplus.environment.turns.number_game import load
from periplus.environment.turns.protocol import TurnOutcome

WON, LOST = TurnOutcome(reward=1.0, is_done=True), TurnOutcome(reward=0.0, is_done=True)


async def play(config: dict[str, int], index: int, moves: list[str]) -> list[TurnOutcome]:
    tasks = load(config, seed=1, size=200)
    episode = tasks.episode()
    await episode.reset(tasks.item(index))
    return [await episode.step(move) for move in moves]


def distance(config: dict[str, int], index: int) -> int:
    columns = load(config, seed=1, size=200).item(index).columns
    return int(columns["target"]) - int(columns["total"])


def test_the_winning_moves_win_against_the_best_opponent_and_others_lose() -> None:
    config = {"distance": 7, "most": 3, "skill_percent": 100}
    five = next(index for index in range(200) if distance(config, index) == 5)
    first = asyncio.run(play(config, five, ["1"]))[0]
    assert not first.is_done
    opponent = int(first.messages[0].content[1])
    assert asyncio.run(play(config, five, ["1", str(4 - opponent)]))[-1] == WON
    # After 2 the opponent can take the rest, and does.
    assert asyncio.run(play(config, five, ["2"])) == [LOST]


def test_a_number_that_is_not_allowed_loses() -> None:
    for move in ("0", "4", "none", "", "99999999999"):
        assert asyncio.run(play({"distance": 7}, 0, [move])) == [LOST]


def test_the_opponent_moves_alike_in_every_episode_of_a_problem() -> None:
    config = {"distance": 50, "skill_percent": 0}
    games = [asyncio.run(play(config, 11, ["1", "2", "1"])) for _ in range(3)]
    assert games[0] == games[1] == games[2]
