"""A plan of the static method."""

from planner.plan import Assignment, Plan, PlanEdge, Prediction, TaskKind

PLAN = Plan(
    method="static",
    trainer_region="a",
    assignments=(
        Assignment(task=TaskKind.TRAINER, region="a", num_workers=1),
        Assignment(task=TaskKind.ROLLOUT, region="a", num_workers=2),
        Assignment(task=TaskKind.ROLLOUT, region="bbb", num_workers=1),
    ),
    weights_tree=(PlanEdge(src_region="a", dst_region="bbb"),),
    trajectory_routes=(PlanEdge(src_region="bbb", dst_region="a"),),
    predictions=(Prediction(region="bbb", weights_s=1.5, rtt_s=0.1),),
    binding="the delay",
)
