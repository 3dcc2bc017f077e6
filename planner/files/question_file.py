"""Problems within plan files: fleet and workload in the forms of their own files, beside goal, rules and limits."""

from dataclasses import dataclass
from typing import NoReturn

from pydantic import JsonValue

from periplus.errors import ConfigError
from planner.files import fleet_file, workload_file
from planner.problem.goal import Goal, Limits, Problem, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFile:
    """Keys of a problem in a plan file."""

    fleet: dict[str, JsonValue]
    workload: dict[str, JsonValue]
    goal: Goal
    rules: Rules
    limits: Limits


def question_file(question: Problem) -> QuestionFile:
    """Return a problem as a plan file has it."""
    return QuestionFile(
        fleet=fleet_file.to_tree(question.fleet),
        workload=workload_file.to_tree(question.workload),
        goal=question.goal,
        rules=question.rules,
        limits=question.limits,
    )


def question_of(file: QuestionFile) -> Problem:
    """Return the problem of a plan file. Raises: ConfigError for an invalid fleet or workload."""
    # A workload file may refer to a model or to rows of lengths on disk. A plan is self-contained, so both are refused.
    sources = workload_file.Sources(config_json=_no_file, rows=_no_file)
    return Problem(
        fleet=fleet_file.fleet_of(file.fleet, "question.fleet"),
        workload=workload_file.workload_of(file.workload, "question.workload", sources),
        goal=file.goal,
        rules=file.rules,
        limits=file.limits,
    )


def _no_file(name: str) -> NoReturn:
    raise ConfigError(f"a plan's problem must not refer to files, but this one refers to {name}")
