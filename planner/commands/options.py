"""From a command line to a question: which file is a job and which a workload, and what the options add to it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from periplus.config import loading
from periplus.config.file_kinds import need_kind
from periplus.errors import ConfigError, PlanInfeasible
from periplus.job.job_file import JobFile, load_job
from planner.commands.numbers import MAX_STEP_S, MAX_USD_PER_HOUR, Number
from planner.files import workload_file
from planner.files.capabilities import Capabilities, load_capabilities
from planner.files.hub_checkpoint import published_bytes, visible_architecture
from planner.files.importers.loaders import load_architecture, load_fleet, load_workload
from planner.files.ranges import some
from planner.jobs.hosts import regions_without_cores
from planner.jobs.job_workload import rules_of_job, workload_of_job
from planner.jobs.needs import needs_of
from planner.plan import Outcome
from planner.problem.fleet import Fleet
from planner.problem.goal import STUDY, Goal, Objective, Problem, Rules
from planner.problem.margins import with_margin
from planner.problem.workload import Task, Workload
from planner.solve import AUTO, Thinking, plan, plan_job

METHODS = ("auto", "exact", "hetrl", "hetrl_bounded", "areal_hex", "verl", "streamrl", "random", "genetic")
"""`planner.methods.portfolio.METHODS` without loading it; a test compares the two."""
JOB_METHODS = (*METHODS, "static")

FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the options say beside the files."""

    goal: Goal
    rules: Rules
    study: bool
    method: str


def question_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that asks the planner."""
    for option in reversed(
        (
            click.option(
                "--objective",
                type=click.Choice([o.value for o in Objective]),
                default="throughput",
                show_default=True,
                help="Least time a step; least dollars at --max-step-s; least time a step at --max-usd-per-hour.",
            ),
            click.option("--max-step-s", type=Number(MAX_STEP_S), help="For --objective cost."),
            click.option(
                "--max-usd-per-hour", type=Number(MAX_USD_PER_HOUR), help="For --objective budget: devices and egress."
            ),
            click.option(
                "--method",
                type=click.Choice(JOB_METHODS),
                default=None,
                help="How to search  [default: the job's plan.method, else auto]",
            ),
            click.option(
                "--study",
                is_flag=True,
                help="Plan beyond what this runtime executes: GPUs, parallelism, tasks that take turns.",
            ),
            click.option("--pin", "pins", multiple=True, metavar="TASK=REGION[,REGION]", help="Run TASK only there."),
            click.option(
                "--forbid", "forbids", multiple=True, metavar="TASK=REGION[,REGION]", help="Never run TASK there."
            ),
            click.option("--forbid-region", "forbidden", multiple=True, metavar="REGION", help="Run nothing there."),
            click.option("--max-regions", type=click.IntRange(1, 1_000_000), help="Use at most so many."),
            click.option(
                "--allow-spot-everywhere", is_flag=True, help="Spot machines may train and score, not only generate."
            ),
        )
    ):
        command = option(command)
    return command


def options_of(values: dict[str, Any]) -> PlanOptions:
    """The options as the planner's values. Raises: click.UsageError for those that contradict each other."""
    objective = Objective(values["objective"])
    goal = Goal(objective=objective, max_step_s=values["max_step_s"], max_usd_per_hour=values["max_usd_per_hour"])
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
    found = []
    for text in texts:
        name, equals, regions = text.partition("=")
        if not equals or not regions or name not in {task.value for task in Task}:
            known = ", ".join(task.value for task in Task)
            raise click.UsageError(f"{flag} {text}: write TASK=REGION[,REGION] with a task of {known}")
        names = frozenset(each.strip() for each in regions.split(",") if each.strip())
        if not names:
            raise click.UsageError(f"{flag} {text}: names no region; write TASK=REGION[,REGION]")
        found.append((Task(name), names))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A job that this runtime is to execute, or a problem."""

    fleet: Fleet
    method: str
    goal: Goal
    job: JobFile | None = None
    problem: Problem | None = None

    def answer(self, thinking: Thinking) -> Outcome:
        """Think. Raises: ConfigError for a model whose files are damaged."""
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
    """What the files and options ask. Raises: ConfigError, PlanInfeasible, click.UsageError."""
    fleet = load_fleet(fleet_path)
    _check_regions(fleet, options.rules, str(fleet_path))
    tree = loading.read_yaml(file)
    need_kind(tree, str(file), ("job", "workload"))
    if str(tree.get("schema", "")).startswith(workload_file.SCHEMA.partition("/")[0]):
        if overrides:
            raise click.UsageError(f"{file} is a workload: it takes no KEY=VALUE; change the file")
        workload, rules = load_workload(file), options.rules
    else:
        job = load_job(file, overrides)
        if not options.study:
            return _job_question(job, fleet, options, str(fleet_path))
        workload, rules = workload_of_job(job, load_architecture(job.model.path)), _joined(job, options.rules)
    _check_tasks(workload, options.rules, str(file))
    capabilities = load_capabilities()
    if options.method == "static":
        raise click.UsageError("--method static is for jobs without --study: it knows no devices")
    problem = Problem(
        fleet=fleet if options.study else executable(fleet, capabilities),
        workload=workload,
        goal=options.goal,
        rules=rules,
        limits=STUDY if options.study else capabilities.limits,
    )
    return Question(fleet=fleet, method=options.method or AUTO, goal=options.goal, problem=with_margin(problem))


def executable(fleet: Fleet, capabilities: Capabilities) -> Fleet:
    """Only machines that this runtime has engines for. Raises: PlanInfeasible if there are none."""
    if "cuda" in capabilities.devices:
        return fleet
    regions = tuple(
        replace(region, machines=tuple(m for m in region.machines if fleet.gpu_types[m.gpu].is_cpu))
        for region in fleet.regions
    )
    if not any(region.machines for region in regions):
        devices = ", ".join(sorted(capabilities.devices))
        raise PlanInfeasible(
            f"no plan: this runtime executes on {devices} only, and the fleet has nothing but accelerators; "
            "--study plans beyond that"
        )
    return replace(fleet, regions=regions)


def _job_question(job: JobFile, fleet: Fleet, options: PlanOptions, source: str) -> Question:
    """The options of a job that is to be executed are its own keys."""
    rules, changes = options.rules, []
    if options.goal != Goal():
        raise click.UsageError("agents tell no prices, so jobs are planned for throughput; --study knows other goals")
    for task, regions in rules.pins:
        key = {Task.GENERATION: "rollout", Task.ACTOR_TRAINING: "trainer"}.get(task)
        if key is None or (key == "trainer" and len(regions) > 1):
            raise click.UsageError("a job's pins are of generation, and of actor_training to one region; else --study")
        changes.append(f"regions.{key}={', '.join(sorted(regions)) if key == 'trainer' else _listed(regions)}")
    if rules.forbidden:
        raise click.UsageError("a job forbids regions to all of its tasks: --forbid-region; else --study")
    if rules.forbidden_regions:
        changes.append(f"regions.forbid={_listed(rules.forbidden_regions | {*job.regions.forbid})}")
    if rules.max_regions is not None:
        changes.append(f"regions.max={rules.max_regions}")
    if changes:
        job = JobFile.from_json(_overridden(job, changes))
    if coreless := regions_without_cores(fleet, needs_of(job)):
        raise ConfigError(
            f"{source} says nothing of the cores in {', '.join(coreless)}, where a job's processes run; give num_cores "
            "there, or keep the job out with --forbid-region; --study plans for accelerators"
        )
    return Question(fleet=fleet, method=options.method or job.plan.method, goal=Goal(), job=job)


def _overridden(job: JobFile, changes: Sequence[str]) -> str:
    tree = json.loads(job.to_json())
    schema = tree.pop("schema")
    return json.dumps({"schema": schema, **loading.override(JobFile, tree, changes, {})})


def _listed(names: frozenset[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in sorted(names)) + "]"


def _joined(job: JobFile, rules: Rules) -> Rules:
    of_job = rules_of_job(job)
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
