import subprocess
import sys
from collections.abc import Mapping

import pytest

from periplus.environment.environment import EXACT
from periplus.environment.gym_tasks import load
from periplus.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_the_same_configuration_gives_the_same_items() -> None:
    first, second = (load("spell_backward", {"max_word_len": 5}, seed=3, size=20) for _ in range(2))
    assert [first.item(n) for n in range(20)] == [second.item(n) for n in range(20)]
    assert len(first) == 20


def test_the_librarys_own_score_is_the_reward() -> None:
    environment = load("spell_backward", {"min_word_len": 4, "max_word_len": 4}, seed=0, size=5)
    answer = environment.item(1).answer
    assert environment.score(1, f" {answer}\n") == EXACT
    assert environment.score(1, answer[:2] + "??") == pytest.approx(0.5)
    assert environment.score(1, "") == 0.0


@pytest.mark.parametrize("task", ["chain_sum", "gcd", "letter_counting", "number_sorting"])
def test_any_procedural_task_accepts_its_own_answers(task: str) -> None:
    environment = load(task, {}, seed=0, size=5)
    for index in range(5):
        assert environment.score(index, environment.item(index).answer) == EXACT


def test_an_unknown_task_is_named_with_close_matches() -> None:
    with pytest.raises(ConfigError, match=r"'spell_backwards'.*spell_backward"):
        load("spell_backwards", {}, seed=0, size=5)


@pytest.mark.parametrize("config", [{"no_such_key": 1}, {"min_word_len": 9, "max_word_len": 3}])
def test_a_configuration_that_the_library_refuses_is_the_operators_error(config: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError, match="spell_backward"):
        load("spell_backward", config, seed=0, size=5)


def test_an_index_outside_the_set_is_refused() -> None:
    with pytest.raises(ValueError):
        load("spell_backward", {}, seed=0, size=5).item(5)


def test_importing_the_module_does_not_import_the_library() -> None:
    code = "import sys, periplus.environment.gym_tasks; sys.exit('reasoning_gym' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
