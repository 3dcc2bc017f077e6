"""Convert a command line to a question for the planner: a job or a workload, a fleet, and the options' goal and rules.

A workload becomes a planning problem. So does a job with `--study`, which lifts the limits of the runtime. A job
without `--study` stays a job: its options become keys of the job, and the planner plans only what the runtime can
execute. Options that contradict each other or the files are refused here, before any search.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from periplus.config import loading
from periplus.config.file_kinds import need_kind
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, load_job
from planner.commands.numbers import MAX_STEP_S, MAX_USD_PER_HOUR, Number
from planner.files import workload_file
from planner.files.capabilities import load_capabilities
from planner.files.hub_checkpoint import published_bytes, visible_architecture
from planner.files.loaders import load_architecture, load_fleet, load_workload
from planner.jobs.job_workload import rules_of_job, workload_of_job
from planner.jobs.needs import needs_of
from planner.plan import PlanOutcome
from planner.problem.fleet import Fleet
from planner.problem.goal import STUDY, Goal, Objective, Problem, Rules
from planner.problem.margins import with_margin
from planner.problem.ranges import some
from planner.problem.workload import Task, Workload
from planner.solve import AUTO, Thinking, plan, plan_job

METHODS = ("auto", "exact", "hetrl", "hetrl_bounded", "areal_hex")
"""Names of `planner.methods.portfolio.METHODS`. They are repeated here because importing that module loads the solver.
A test compares the two."""
JOB_METHODS = (*METHODS, "static")
"""Names of the methods that can plan a job."""

_TASK_OF_PART = {"trainer": Task.ACTOR_TRAINING, "rollout": Task.GENERATION}
"""The task that each part of a job does, which users name as the job file's `regions` does."""

FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Values of the options of a planning command; `method` is empty if none was given."""

    goal: Goal
    rules: Rules
    study: bool
    method: str


def question_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every planning command has to a command."""
    # Decorators apply from the inside out, so the last option is added first and help lists them in this order.
    for option in reversed(
        (
            click.option(
                "--objective",
                type=click.Choice([o.value for o in Objective]),
                default="throughput",
                show_default=True,
                help="What to minimise: throughput, seconds per step; cost, dollars per hour within --max-step-s; "
                "budget, seconds per step within --max-usd-per-hour.",
            ),
            click.option(
                "--max-step-s", type=Number(MAX_STEP_S), help="Limit on seconds per step, for --objective cost."
            ),
            click.option(
                "--max-usd-per-hour",
                type=Number(MAX_USD_PER_HOUR),
                help="Limit on dollars per hour, for --objective budget: rent of devices plus egress.",
            ),
            click.option(
                "--method",
                type=click.Choice(JOB_METHODS),
                default=None,
                help="Search method  [default: the job's plan.method, otherwise auto]",
            ),
            click.option(
                "--study",
                is_flag=True,
                help="Plan beyond what this runtime can execute: GPUs, parallelism, tasks that share devices by turns.",
            ),
            click.option("--pin", "pins", multiple=True, metavar="TASK=REGION[,REGION]", help="Run TASK only there."),
            click.option(
                "--forbid", "forbids", multiple=True, metavar="TASK=REGION[,REGION]", help="Never run TASK there."
            ),
            click.option("--forbid-region", "forbidden", multiple=True, metavar="REGION", help="Run no task there."),
            click.option("--max-regions", type=click.IntRange(1, 1_000_000), help="Largest number of regions to use."),
            click.option(
                "--allow-spot-everywhere",
                is_flag=True,
                help="Allow training and scoring on spot machines, not only generation.",
            ),
        )
    ):
        command = option(command)
    return command


def options_of(values: dict[str, Any]) -> PlanOptions:
    """Return the options as the planner's values. Raises: click.UsageError for options that contradict each other."""
    objective = Objective(values["objective"])
    goal = Goal(objective=objective, max_step_s=values["max_step_s"], max_usd_per_hour=values["max_usd_per_hour"])
    # Each limit belongs to one objective: there it is required, elsewhere it would be ignored, so it is refused.
    needed = {Objective.COST_AT_THROUGHPUT: "max_step_s", Objective.THROUGHPUT_UNDER_BUDGET: "max_usd_per_hour"}
    for key in ("max_step_s", "max_usd_per_hour"):
        flag = f"--{key.replace('_', '-')}"
        if needed.get(objective) == key and values[key] is None:
            raise click.UsageError(f"--objective {objective.value} needs {flag}")
        if needed.get(objective) != key and values[key] is not None:
            of = next(o.value for o, k in needed.items() if k == key)
            raise click.UsageError(f"{flag} belongs to --objective {of}, not {objective.value}")
    rules = Rules(
        pins=_pairs("--pin", values["pins"]),
        forbidden=_pairs("--forbid", values["forbids"]),
        forbidden_regions=frozenset(values["forbidden"]),
        max_regions=values["max_regions"],
        spot_for_rollouts_only=not values["allow_spot_everywhere"],
    )
    return PlanOptions(goal=goal, rules=rules, study=values["study"], method=values["method"] or "")


def _pairs(flag: str, texts: Sequence[str]) -> tuple[tuple[Task, frozenset[str]], ...]:
    return tuple(_pair(flag, text) for text in texts)


def _pair(flag: str, text: str) -> tuple[Task, frozenset[str]]:
    """Return the task and the regions of `TASK=REGION[,REGION]`. Raises: click.UsageError that says what is wrong."""
    name, _, listed = text.partition("=")
    regions = frozenset(each.strip() for each in listed.split(",") if each.strip())
    tasks = [task.value for task in Task]
    wrong = []
    if name not in tasks:
        meant = f" (the job's {name} does {_TASK_OF_PART[name].value})" if name in _TASK_OF_PART else ""
        wrong.append(f"{name!r} is not a task{meant}")
    if not regions:
        wrong.append("names no region")
    if wrong:
        form = f"write TASK=REGION[,REGION] with a task of {', '.join(tasks)}"
        raise click.UsageError(f"{flag} {text}: {' and '.join(wrong)}; {form}")
    return Task(name), regions


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a command asks the planner: to plan either `job`, which this runtime is to execute, or `problem`."""

    fleet: Fleet
    method: str
    goal: Goal
    job: JobFile | None = None
    """The job with the options as its keys. None if `problem` is given."""
    problem: Problem | None = None
    """The planning problem with the margins of its goal. None if `job` is given."""

    def aiming_at(self, keys: Mapping[str, object]) -> "Question":
        """Return the question of the same job with these values of `plan.objective` and its limits, and no others."""
        assert self.job is not None
        aim = {"objective": "time", "max_step_s": None, "max_usd_per_hour": None, **keys}
        job = self.job.model_copy(update={"plan": self.job.plan.model_copy(update=aim)})
        return replace(self, job=job, goal=needs_of(job).goal)

    def answer(self, thinking: Thinking) -> PlanOutcome:
        """Search and return the outcome. Raises: ConfigError for a model whose files are damaged."""
        if self.problem is not None:
            return plan(self.problem, thinking, self.method)
        assert self.job is not None
        path = self.job.model.path
        return plan_job(
            self.fleet,
            self.job,
            architecture=visible_architecture(path),
            model_bytes=published_bytes(path),
            capabilities=load_capabilities(),
            thinking=thinking,
            method=self.method,
        )


def question(file: Path, overrides: Sequence[str], fleet_path: Path, options: PlanOptions) -> Question:
    """Return the question that a job or workload file, `KEY=VALUE` overrides of a job, a fleet and the options ask.

    Raises: ConfigError for wrong files, PlanInfeasible for a fleet that this runtime cannot use, click.UsageError for
    options that do not fit the files.
    """
    fleet = load_fleet(fleet_path)
    _check_regions(fleet, options.rules, str(fleet_path))
    tree = loading.read_yaml(file)
    need_kind(tree, str(file), ("job", "workload"))
    # The schema says which of the two kinds the file is.
    if str(tree.get("schema", "")).startswith(workload_file.SCHEMA.partition("/")[0]):
        if overrides:
            raise click.UsageError(f"{file} is a workload, which takes no KEY=VALUE overrides; edit the file instead")
        workload, rules = load_workload(file), options.rules
    else:
        job = load_job(file, overrides)
        # What the runtime is to execute stays a job. Only a study becomes a general planning problem.
        if not options.study:
            return _job_question(job, fleet, options, str(fleet_path))
        workload, rules = workload_of_job(job, load_architecture(job.model.path)), _joined(job, options.rules)
    _check_tasks(workload, options.rules, str(file))
    capabilities = load_capabilities()
    if options.method == "static":
        raise click.UsageError("--method static plans only jobs without --study, because it knows no devices")
    problem = Problem(
        fleet=fleet,
        workload=workload,
        goal=options.goal,
        rules=rules,
        limits=STUDY if options.study else capabilities.limits,
    )
    return Question(fleet=fleet, method=options.method or AUTO, goal=options.goal, problem=with_margin(problem))


def _job_question(job: JobFile, fleet: Fleet, options: PlanOptions, source: str) -> Question:
    """Return the question of a job that is to be executed, with the options written into the job's own keys.

    Raises: ConfigError if the fleet does not give the cores of a region that the job may use, click.UsageError for
    options that no key of a job can express.
    """
    rules, changes = options.rules, []
    # Each option is either written into a key of the job or refused, so that none is silently ignored.
    if options.goal != Goal():
        limits = {"max_step_s": options.goal.max_step_s, "max_usd_per_hour": options.goal.max_usd_per_hour}
        aim = "cost" if options.goal.objective is Objective.COST_AT_THROUGHPUT else "time"
        changes += [f"plan.objective={aim}", *(f"plan.{key}={json.dumps(limit)}" for key, limit in limits.items())]
    for task, regions in rules.pins:
        key = {Task.GENERATION: "rollout", Task.ACTOR_TRAINING: "trainer"}.get(task)
        if key is None or (key == "trainer" and len(regions) > 1):
            raise click.UsageError(
                f"a job cannot pin {task.value} to {', '.join(sorted(regions))}: only generation can be pinned, and "
                "actor_training to one region; use --study for other pins"
            )
        # `regions.trainer` is one name, `regions.rollout` a list.
        changes.append(f"regions.{key}={', '.join(sorted(regions)) if key == 'trainer' else _listed(regions)}")
    if rules.forbidden:
        raise click.UsageError(
            "a job cannot forbid a region to a single task; use --forbid-region for all tasks, or --study"
        )
    if rules.forbidden_regions:
        changes.append(f"regions.forbid={_listed(rules.forbidden_regions | {*job.regions.forbid})}")
    if rules.max_regions is not None:
        changes.append(f"regions.max={rules.max_regions}")
    # Validated again as a job file: the changes may contradict the job's other keys.
    if changes:
        job = JobFile.from_json(_overridden(job, changes))
    return Question(fleet=fleet, method=options.method or job.plan.method, goal=needs_of(job).goal, job=job)


def _overridden(job: JobFile, changes: Sequence[str]) -> str:
    tree = json.loads(job.to_json())
    # Overrides are paths into the keys of a job; the schema is not one of them.
    schema = tree.pop("schema")
    return json.dumps({"schema": schema, **loading.override(JobFile, tree, changes, {})})


def _listed(names: frozenset[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in sorted(names)) + "]"


def _joined(job: JobFile, rules: Rules) -> Rules:
    of_job = rules_of_job(job)
    # Both limits hold, so the smaller one counts.
    most = [each for each in (rules.max_regions, job.regions.max) if each is not None]
    return replace(
        rules,
        pins=(*of_job.pins, *rules.pins),
        min_regions=of_job.min_regions,
        generating=of_job.generating,
        forbidden_regions=rules.forbidden_regions | {*job.regions.forbid},
        max_regions=min(most, default=None),
    )


def _check_tasks(workload: Workload, rules: Rules, source: str) -> None:
    if beside := rules.tasks_beside(workload):
        has = ", ".join(task.value for task in workload.tasks)
        raise click.UsageError(f"--pin or --forbid names {beside[0].value}, but the tasks of {source} are {has}")


def _check_regions(fleet: Fleet, rules: Rules, source: str) -> None:
    known = {region.name for region in fleet.regions}
    named = {*rules.forbidden_regions, *(name for _, names in (*rules.pins, *rules.forbidden) for name in names)}
    if unknown := sorted(named - known):
        raise ConfigError(f"{source} has no region {unknown[0]}; it has {some(sorted(known)) or 'none'}")
