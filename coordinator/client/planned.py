"""What `job submit` shows of a plan: the job's processes, their dollars, and which plans are faster or cheaper."""

import asyncio

from coordinator.client.connection import Coordinator, job_state
from coordinator.client.fleet_file import fleet_tree
from periplus import clock
from periplus.errors import PeriplusError
from periplus.job.job_file import JobFile
from periplus.pb.v1 import control_pb2
from planner.explain.money import has_prices
from planner.explain.processes import dollars_text, processes_text
from planner.files.fleet_file import fleet_of
from planner.files.hub_checkpoint import visible_architecture
from planner.plan import Plan
from planner.problem.fleet import Fleet

PLAN_WAIT_S = 10.0
"""Seconds that `job submit` waits for a plan to show. Chosen by hand: most are made within a second."""
FRONTIER_BUDGET_S = 3.0
"""Seconds of all searches for the frontier. Chosen by hand: six searches of at most half a second."""
_LOOK_S = 0.1


async def until_planned(remote: Coordinator, job: control_pb2.Job) -> control_pb2.Job:
    """Return the job once it has a plan, waits for something or has ended, or as it is after PLAN_WAIT_S."""
    end_s = clock.monotonic_s() + PLAN_WAIT_S
    while not job.plan_json and job_state(job) == "pending" and not job.reason and clock.monotonic_s() < end_s:
        await asyncio.sleep(_LOOK_S)
        job = await remote.job(job.job_id)
    return job


def plan_words(job: control_pb2.Job) -> str:
    """Return the processes of a job's plan and their dollars; empty before it has a plan."""
    if not job.plan_json:
        return ""
    plan = Plan.from_json(job.plan_json)
    return f"{processes_text(plan)}\n{dollars_text(plan, JobFile.from_json(job.job_json).steps)}"


def run_words(job: control_pb2.Job, fleet: control_pb2.Fleet) -> str:
    """Return where the run directory of a planned job is going to be; empty before it has a plan."""
    trainer = next((each for each in job.processes if each.role == control_pb2.ROLE_TRAINER), None)
    if trainer is None:
        return ""
    machines = (each.inventory.machines for each in fleet.regions if each.name == trainer.region)
    is_cluster = sum(machine.has_launcher for machine in next(machines, ())) > 1
    where = "storage that its machines share" if is_cluster else trainer.machine
    return f"the run directory: below the work directory of {trainer.region}'s agent, on {where}"


def frontier_words(job: control_pb2.Job, fleet: control_pb2.Fleet) -> str:
    """Return the fastest, the cheapest and the best plan between them that the whole fleet allows the job.

    Empty if the job's plan predicts no seconds or was made by hand, if no price is known, or if the model's
    configuration is not on this machine. It takes FRONTIER_BUDGET_S. Never raises an error of ours: the job is
    submitted, whether there is a frontier or not.
    """
    plan = Plan.from_json(job.plan_json) if job.plan_json else None
    if plan is None or plan.placement is None:
        return ""
    job_file = JobFile.from_json(job.job_json)
    try:
        fleet_now = fleet_of(fleet_tree(fleet, clock.unix_s())[0], "the fleet")
        if not has_prices(fleet_now) or visible_architecture(job_file.model.path) is None:
            return ""
        return _frontier(job, job_file, plan, fleet_now)
    except PeriplusError as error:
        return f"no frontier: {error}"


def _frontier(job: control_pb2.Job, job_file: JobFile, plan: Plan, fleet: Fleet) -> str:
    # These load the searches, which most commands do without.
    from planner.commands.background_search import Interrupt
    from planner.commands.frontier import frontier
    from planner.commands.options import Question
    from planner.explain.frontier import frontier_text
    from planner.jobs.needs import needs_of

    asked = Question(fleet=fleet, method=job_file.plan.method, goal=needs_of(job_file).goal, job=job_file)
    named = frontier(asked, plan, FRONTIER_BUDGET_S, 0, Interrupt(follows="the job goes on"))
    if not named:
        return ""
    change = f"\ncheaper or faster: periplus job cancel {job.job_id}, and submit with --objective cost or time"
    return frontier_text(named, job_file.steps) + (change if len(named) > 1 else "")
