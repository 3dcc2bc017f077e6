"""Rows of the critic's weights, which travel in each step if another group than the one that trains it infers with it.

The path of these weights is training, their transfer, and the scoring of the group that infers; generation and other
scoring continue meanwhile:

    T + transfer + scoring of the group <= (eta + 1) tau

The model does not know the source region exactly. It counts the least transfer over all sources that the subproblem
leaves open (`critic_transfers`), so the rows hold for each of them.
"""

import numpy as np

from planner.methods.exact.relaxation.critic_transfers import CriticTransfers
from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_at_most, add_weighted_at_most, highest_level
from planner.methods.exact.relaxation.scoring_rows import add_waiting
from planner.methods.exact.relaxation.variables import MeshVariables, Terms, UnitVariables
from planner.problem.workload import Task


def add_critic(built: Relaxation, dollars: DollarTerms) -> bool:
    """Add the path and the egress of the critic's weights, if they travel; return False if no candidate can infer."""
    models = built.data.cost_tables.problem.workload.models
    if Task.CRITIC_TRAINING not in models or Task.CRITIC_INFERENCE not in models:
        return True
    trains = next(tasks for tasks in built.subproblem.grouping if Task.CRITIC_TRAINING in tasks)
    scores = next(tasks for tasks in built.subproblem.grouping if Task.CRITIC_INFERENCE in tasks)
    # The same group has the weights where it needs them.
    if trains == scores:
        return True
    # `add_mesh` and `add_units` have made the variables of all groups before.
    inferring = built.meshes[scores] if scores in built.meshes else built.units[scores]
    training = built.meshes[trains]
    critic = CriticTransfers.between(built.data, training.of, inferring.of, built.candidates)
    built.critic = critic
    if isinstance(inferring, MeshVariables):
        _add_to_mesh(built, dollars, critic, training, inferring)
        return True
    return _add_to_units(built, dollars, critic, training, inferring)


def _add_to_mesh(
    built: Relaxation, dollars: DollarTerms, critic: CriticTransfers, training: MeshVariables, inferring: MeshVariables
) -> None:
    """Add the rows if a mesh infers: x_m = 0 where the weights never arrive in time, and else its path.

        T + sum over m of (transfer_m + score_m) x_m <= (eta + 1) tau

    Valid, since exactly one x_m is 1, and transfer_m is the least over the sources to the farther region of mesh m.
    """
    of, regions = inferring.of, inferring.of.block.regions[inferring.of.rows]
    in_time = np.asarray(critic.is_near[regions].all(axis=1))
    built.forbid(inferring.at, ~in_time)
    at, regions = inferring.at[in_time], regions[in_time]
    dollars.add_critic(at, critic.least_usd, regions)
    seconds = critic.least_s[regions].max(axis=1) + of.score_s[in_time]
    add_weighted_at_most(built.model, at, seconds / built.scale_s, _path(built))
    # A mesh of two regions appears under both.
    for region in np.unique(regions).tolist():
        here = at[(regions == region).any(axis=1)]
        _forbid_far_sources(built, critic, training, region, [(x, 1.0) for x in here.tolist()])


def _add_to_units(
    built: Relaxation, dollars: DollarTerms, critic: CriticTransfers, training: MeshVariables, inferring: UnitVariables
) -> bool:
    """Add the rows if units infer: n_u = 0 where the weights never arrive in time, and the path of the most distant.

        T + max over used units u of transfer_u + (time of the group's scoring) <= (eta + 1) tau

    The maximum is a chain of binaries as for scoring, and `add_waiting` repeats it for the linear relaxation with the
    level transfer_u + l_u. Return False if the weights arrive nowhere in time.
    """
    data, least = built.data, critic.least_s
    in_time = critic.is_near[inferring.of.region]
    built.forbid(inferring.at, ~in_time)
    if not in_time.any():
        return False
    # Units where the weights arrive in time, with the transfer to each of them: [num_near_units].
    near = inferring.some(np.flatnonzero(in_time))
    transfer_s = least[near.of.region]
    steps = highest_level(data, built.model, near, transfer_s, built.scale_s, built.is_fine)
    add_at_most(built.model, [*steps, *built.scoring[inferring.of.block.tasks]], _path(built))
    add_waiting(built, near, transfer_s + near.of.level_s, built.candidates.most_after_train_s, _path(built))
    # Some sources may be too far for this region, and weights that cross regions cost egress: both need the region's
    # binary.
    for region in np.unique(near.of.region).tolist():
        if not critic.near[region].all():
            _forbid_far_sources(built, critic, training, region, [(built.used(near, region), 1.0)])
        if dollars.counts and critic.least_usd[region] > 0:
            used, there = np.array([built.used(near, region)]), np.array([[region, region]])
            dollars.add_critic(used, critic.least_usd, there)
    return True


def _path(built: Relaxation) -> Terms:
    """Return what a path leaves after training: (eta + 1) tau - T."""
    return [(built.step, float(built.data.ends)), (built.train, -1.0)]


def _forbid_far_sources(
    built: Relaxation, critic: CriticTransfers, training: MeshVariables, region: int, uses: Terms
) -> None:
    """Forbid training the critic where its weights would arrive too late in a region that infers with it.

        uses + sum over the meshes m that train too far from the region of x_m <= 1

    `uses` is 1 if the region infers. Valid, since both terms are 0 or 1, and not both can be 1 within the step limit.
    """
    far = ~critic.near[region][critic.source[training.of.rows]]
    if far.any():
        built.model.row([*uses, *((x, 1.0) for x in training.at[far].tolist())], high=1.0)
