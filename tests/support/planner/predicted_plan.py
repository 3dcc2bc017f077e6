"""A plan of two regions with all its predictions."""

from planner.answer.evaluation import Evaluation, RegionTimes
from planner.plan import Assignment, Plan, SimulatedFigures, SimulatedRegion, TaskKind
from planner.problem.workload import Task

EVALUATION = Evaluation(
    step_s=10.0,
    usd_per_hour=0.0,
    usd_egress_per_hour=0.0,
    task_s=((Task.GENERATION, 9.0), (Task.REFERENCE, 1.0), (Task.ACTOR_TRAINING, 5.0)),
    regions=(
        RegionTimes(region="eu", weights_s=0.0, trajectories_s=0.0, window_s=10.0, generation_s=9.0),
        RegionTimes(region="us", weights_s=1.5, trajectories_s=0.1, window_s=10.0, load_s=0.5, generation_s=8.0),
    ),
    binding="path:us",
)
PLAN = Plan(
    method="exact",
    trainer_region="eu",
    assignments=(
        Assignment(task=TaskKind.TRAINER, region="eu", num_workers=1),
        Assignment(task=TaskKind.ROLLOUT, region="eu", num_workers=2, share=0.25),
        Assignment(task=TaskKind.ROLLOUT, region="us", num_workers=1, share=0.5),
        Assignment(task=TaskKind.ROLLOUT, region="us", num_workers=1, share=0.25),
    ),
    evaluation=EVALUATION,
    simulated=SimulatedFigures(
        step_s=11.0,
        samples_per_s=1.0,
        max_age=1,
        num_steps=4,
        seed=0,
        training_s=6.5,
        waiting_s=4.5,
        regions=(SimulatedRegion(region="us", weights_s=2.25, generation_s=9.25),),
    ),
)
